"""`gpufleet replay --hub`: a recording in a hub, with its own times."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.access import Role
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import NANOS, to_datetime
from tests.security.guarded import Guarded, guarded
from tests.support.command import gpufleet
from tests.support.recordings import AT, write_recording
from tests.support.snapshots import held_snapshot
from tests.support.waiting import wait_until_async

FRAMES = 40


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded(tmp_path / "hub") as site:
        yield site


def frame(number: int) -> Snapshot:
    """Return a snapshot whose first GPU has another power in each frame."""
    snapshot = held_snapshot()
    first, *others = snapshot.devices
    power = Reading(value=float(number), reader="nvml", measured_at=to_datetime(AT + number * NANOS))
    first = msgspec.structs.replace(first, readings={**first.readings, "gpu_power_watts": power})
    return msgspec.structs.replace(snapshot, devices=(first, *others))


async def post(site: Guarded, path: Path, role: Role = Role.SENDER) -> subprocess.CompletedProcess[str]:
    token = path.with_suffix(".token")
    token.write_text(site.secrets[role])
    token.chmod(0o600)
    options = ["--hub", site.hub.url, "--cluster", "local", "--token-file", str(token)]
    return await asyncio.to_thread(gpufleet, "replay", str(path), *options)


async def test_frames_keep_their_times_and_are_not_current(site: Guarded, tmp_path: Path) -> None:
    path = tmp_path / "node.rec"
    write_recording(path, [encode_snapshot(frame(number)) for number in range(FRAMES)])
    for _ in range(2):  # what the hub has already is not stored again
        done = await post(site, path)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"{FRAMES} frames posted" in done.stderr
    admin = site.secrets[Role.ADMIN]

    async def last_frame_is_stored() -> bool:
        nodes = (await site.request("/v1/nodes", admin)).document["items"]
        return any(node["machine"]["last_seen"].startswith("2026-01-01T00:00:39.") for node in nodes)

    await wait_until_async(last_frame_is_stored, what="the last frame in the store")
    (node,) = (await site.request("/v1/nodes", admin)).document["items"]
    spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": node["machine"]["id"]}}
    spec["valid_from"] = "2025-12-31T00:00:00Z"
    assert (await site.request("/v1/allocations/a", admin, "PUT", spec)).status == 201
    window = "start=2026-01-01T00:00:00Z&end=2026-01-01T00:01:00Z&step=1s"
    answer = (await site.request(f"/v1/allocations/a/series?metric=gpu_power_watts&{window}", admin)).document
    gpu = frame(0).devices[0].key
    (points,) = (one["points"] for one in answer["series"] if one["device"].endswith(gpu))
    assert [one["value"] for one in points[:FRAMES]] == [float(number) for number in range(FRAMES)]
    assert site.store.seqs.count(1) == 1
    gpus = (await site.request("/v1/gpus", admin)).document["items"]
    (power,) = (one["device"]["readings"]["gpu_power_watts"] for one in gpus if one["device"]["id"].endswith(gpu))
    assert power["absent"] == "stale"  # the newest frame is months old


async def test_rejected_recording_ends_with_the_error_of_the_hub(site: Guarded, tmp_path: Path) -> None:
    path = tmp_path / "node.rec"
    write_recording(path, [encode_snapshot(frame(0))])
    done = await post(site, path, Role.OPERATOR)
    assert (done.returncode, "403" in done.stderr) == (1, True)
    done = await asyncio.to_thread(gpufleet, "replay", str(path), "--hub", site.hub.url)
    assert (done.returncode, "--cluster" in done.stderr) == (2, True)
