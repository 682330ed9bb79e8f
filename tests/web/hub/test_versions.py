"""Batches of other versions: older ones are always read, newer ones as far as they are known."""

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.codecs.bundle import unpack
from gpufleet.delivery.post import HubClient
from gpufleet.hub.receive.counters import MAX_NAMES
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.status import ReaderState
from gpufleet.spool import Spool
from tests.codecs.batch.stored import STORED, expected
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site, running_site

NODE = (STORED / "node.msgpack").read_bytes()
"""One host sample and two GPUs, encoded in the newest version."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path / "hub", clusters=("local", "north")) as site:
        yield site


def newer(change: Callable[[list[Any]], None]) -> bytes:
    elements: list[Any] = msgspec.msgpack.decode(NODE)
    change(elements)
    return msgspec.msgpack.encode(elements)


def add(block: list[Any], name: str, column: list[Any]) -> None:
    """Add a column of cells to a block of the newest version."""
    block[3].append(name)
    block[9].append(column)
    block[10] += "-"


def stored(site: Site) -> Any:
    (accepted,) = site.store.writes[-1][1]
    return to_rows(accepted.batch)


async def unknown(site: Site) -> dict[str, float]:
    start = 'gpufleet_hub_unknown_metrics_total{metric="'
    lines = [line for line in (await site.text("/metrics")).splitlines() if line.startswith(start)]
    return {line.removeprefix(start).partition('"')[0]: float(line.split()[-1]) for line in lines}


async def test_stored_batches_are_accepted(site: Site, tmp_path: Path) -> None:
    known = expected()
    await site.post(*unpack((STORED / "relay.bundle").read_bytes()))
    seqs = {(one.batch.cluster, one.batch.seq) for _, write, *_ in site.store.writes for one in write}
    assert seqs == {(known[name]["cluster"], known[name]["seq"]) for name in ("node", "node-later", "everything")}
    spool = Spool.open(shutil.copytree(STORED / "spool", tmp_path / "spool"), max_bytes=1 << 20)
    await site.post(*(one.body for one in spool.read(max_records=100, max_bytes=1 << 20)))
    spool.close()


async def test_unknown_fields_are_ignored(site: Site) -> None:
    def change(batch: list[Any]) -> None:
        batch[1] = 9_999  # a future catalogue version
        batch += [None, {"new": [1]}]
        batch[7]["new"] = 1
        batch[8][0]["new"] = 1
        batch[10][0][0] += ["", "new"]
        for block in batch[11]:
            block.append(["new"])
        batch[13][0] += [None, [], ["new"]]
        batch[13][0][2][0]["new"] = None

    await site.post(newer(change))
    assert stored(site) == to_rows(decode(NODE))


async def test_unknown_metrics_are_counted_by_name(site: Site) -> None:
    def change(batch: list[Any]) -> None:
        for block in batch[11]:
            add(block, "gpu_hype_ratio", [0.5] * len(block[4]))
        names = ["gpu_tensor_mood", *batch[11][0][:3], [0], [-1], batch[11][0][6][:1], [0], [["x"]], [1], [-1]]
        batch[12].append(names)

    await site.post(newer(change))
    assert stored(site) == to_rows(decode(NODE))
    assert await unknown(site) == {"gpu_hype_ratio": 3, "gpu_tensor_mood": 1}


async def test_number_of_unknown_metric_names_is_bounded(site: Site) -> None:
    def change(batch: list[Any]) -> None:
        block = batch[11][0]
        for number in range(MAX_NAMES + 50):
            add(block, f"new_{number}", [1] * len(block[4]))

    await site.post(newer(change))
    counted = await unknown(site)
    assert len(counted) == MAX_NAMES + 1
    rows = counted["new_0"]
    assert counted["_other"] == 50 * rows > 0


async def test_unknown_reason_or_state_is_never_healthy(site: Site) -> None:
    def change(batch: list[Any]) -> None:
        batch[10][0][0][1] = "sulking"
        batch[13][0][2][0]["state"] = "superb"

    await site.post(newer(change))
    report = stored(site).reports[0]
    absent = [value for one in report.samples for value in one.values.values() if isinstance(value, Absent)]
    assert absent
    assert {one.reason for one in absent} == {Reason.UNKNOWN}
    assert [one.state for one in report.readers] == [ReaderState.UNKNOWN]


async def test_unknown_state_of_a_metric_affects_only_its_cell(site: Site) -> None:
    def change(batch: list[Any]) -> None:
        for block in batch[11]:
            if block[0] == "nvml":
                add(block, "gpu_recovery_action", ["none", "meditate"])

    await site.post(newer(change))
    found = [one.values["gpu_recovery_action"] for one in stored(site).reports[0].samples if one.reader == "nvml"]
    assert found == ["none", Absent(Reason.INVALID_VALUE, "not a state")]
    assert 'gpufleet_hub_invalid_values_total{metric="gpu_recovery_action"} 1' in await site.text("/metrics")


CLOSED: dict[str, Callable[[list[Any]], object]] = {
    "machines[0].kind": lambda batch: batch[8][0].update(kind="toaster"),
    "views[0].kind": lambda batch: batch[9][0].update(kind="tpu"),
    "views[0].side": lambda batch: batch[9][0].update(side="inside"),
    "samples[0].lane": lambda batch: batch[11][0].__setitem__(1, "often"),
    "samples[0].provenance": lambda batch: batch[11][0].__setitem__(2, "hearsay"),
}


@pytest.mark.parametrize("field", CLOSED)
async def test_unknown_attribution_of_a_value_is_refused(site: Site, field: str) -> None:
    async with HubClient(site.hub.url, name="test", timeout_seconds=20) as client:
        answer = await client.post(newer(CLOSED[field]))  # type: ignore[arg-type]  # its return value is not used
    assert (answer.status, answer.error) == (400, "bad_batch")
    assert field in answer.detail

    async def counted() -> bool:
        return 'gpufleet_hub_rejected_batches_total{reason="bad_batch"} 1' in await site.text("/metrics")

    await wait_until_async(counted)
