"""`gpufleet record --hub`: machines as a hub has them."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpufleet.cli.fetch import Access
from gpufleet.cli.hub_machine import fetch_cluster_snapshots, fetch_machine_snapshot, hub_status
from gpufleet.cli.options import CommandError
from gpufleet.cli.record import FleetSource
from gpufleet.codecs.batch import encode
from gpufleet.codecs.snapshot_json import decode_snapshot, encode_snapshot
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.event import Event
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance
from gpufleet.model.status import ReaderState
from gpufleet.model.time import to_ns
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.recording.reports import RecordedBatches
from gpufleet.top.observation import observe_recorded
from tests.fakes.batches import EPOCH, NODE, body, gpu_sample, gpu_view
from tests.support.command import gpufleet
from tests.support.recordings import frames_of, snapshots_of
from tests.web.hub.site import Site, now, running_site

HOLDER = Holder(kind=HolderKind.POD, id="uid-1", name="train-0", namespace="ml")


async def post(site: Site, at: int) -> None:
    """Post two GPUs of a machine, one of them held, an event, and another machine."""
    views = [gpu_view(1), gpu_view(2)]
    report = MachineReport(
        machine=NODE,
        samples=tuple(gpu_sample(view, at, gpu_power_watts=100.0, gpu_name="NVIDIA H200") for view in views),
        holdings=(
            Holding(view=views[0].key, holder=HOLDER, since=at, methods=("kubelet",), verdict=HoldingVerdict.AGREED),
        ),
        events=(Event(view=views[1], kind="xid", code=79, at=at),),
    )
    first = Batch(cluster="local", sender="node-a", epoch=EPOCH, seq=1, sent_at=at, reports=(report,))
    other = body(1, at, sender="node-b", epoch="b" * 32, machine=Machine(name="node-b", machine_id="b" * 32))
    await site.post(encode(first), other)


async def test_snapshot_has_what_the_hub_has_of_one_machine(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        at = now()
        await post(site, at)
        snapshot = await asyncio.to_thread(fetch_machine_snapshot, site.hub.url, "node-a", Access())
        with pytest.raises(CommandError):
            await asyncio.to_thread(fetch_machine_snapshot, site.hub.url, "node-c", Access())
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    assert (snapshot.node, snapshot.aggregate.coverage) == (NODE, "2 of 2 devices")
    assert [one.key for one in snapshot.devices] == ["gpu/GPU-1", "gpu/GPU-2"]
    power = snapshot.devices[0].readings["gpu_power_watts"]
    assert (power.value, power.reader, power.age_seconds, power.received_at) == (100.0, "nvml", None, None)
    assert power.measured_at is not None
    assert abs(to_ns(power.measured_at) - at) < 1000
    assert {one.provenance for one in snapshot.devices[0].sources} == {Provenance.HOST_LOCAL_PROBE}
    assert snapshot.devices[0].holders is not None
    assert [one.holder for one in snapshot.devices[0].holders.holdings] == [HOLDER]
    assert [(one.kind, one.code, one.device) for one in snapshot.events] == [("xid", 79, "gpu/GPU-2")]


async def test_only_a_device_without_uuid_has_its_instance(tmp_path: Path) -> None:
    """dcgm-exporter's page names no UUID of a MIG device. A host's number of a vGPU is not for its tenant."""
    view = View(kind=ViewKind.MIG, side=Side.HOST, instance="7/0@0000:01:00.0", parent=gpu_view(1).key)
    async with running_site(tmp_path) as site:
        at = now()
        vgpu = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="v", instance="3", parent=gpu_view(1).key)
        report = MachineReport(machine=NODE, samples=tuple(gpu_sample(one, at) for one in (gpu_view(1), view, vgpu)))
        await site.post(
            encode(Batch(cluster="local", sender="node-a", epoch=EPOCH, seq=1, sent_at=at, reports=(report,)))
        )
        snapshot = await asyncio.to_thread(fetch_machine_snapshot, site.hub.url, "node-a", Access())
    assert {one.kind: one.instance for one in snapshot.devices} == {
        ViewKind.GPU: None,
        ViewKind.MIG: view.instance,
        ViewKind.VGPU: None,
    }
    RecordedBatches("local", bytes(16)).batch(snapshot, at)


async def test_machine_of_unknown_state_is_not_current(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await post(site, now())
        _, answer = await site.request("/v1/machines/node-a")
    record = msgspec.convert(answer, MachineRecord)
    assert hub_status(record).state is ReaderState.OK
    assert (hub_status(record).interval_seconds, hub_status(record).duration_seconds) == (None, None)
    assert hub_status(replace(record, liveness=None)).state is ReaderState.FAILED


async def test_cluster_is_recorded_and_replayed_as_a_fleet(tmp_path: Path) -> None:
    path = tmp_path / "r"
    async with running_site(tmp_path / "hub") as site:
        await post(site, now())
        options = ["--hub", site.hub.url, "--cluster", "local", "--every", "1s", "--duration", "2s"]
        done = await asyncio.to_thread(gpufleet, "record", str(path), *options)
        assert done.returncode == 0, done.stderr
        single = await asyncio.to_thread(fetch_machine_snapshot, site.hub.url, "node-a", Access())
    frames, snapshots = frames_of(path), snapshots_of(path)
    assert len(frames) >= 4
    assert [one.node.name for one in snapshots] == ["node-a", "node-b"] * (len(frames) // 2)
    assert snapshots[0] == replace(single, readers=snapshots[0].readers)  # its age is newer
    times = [one.at for one in frames]
    assert times == sorted([*set(times), *set(times)])
    shown = await asyncio.to_thread(gpufleet, "replay", str(path), "--json", "--frames", "1")
    assert [json.loads(line)["node"]["name"] for line in shown.stdout.splitlines()] == ["node-a", "node-b"]
    screen = await asyncio.to_thread(gpufleet, "top", "--once", "--page", "devices", "--replay", str(path))
    assert "machines 2, devices 4" in screen.stdout
    assert {"node-a", "node-b"} <= set(screen.stdout.split())
    decoded = await asyncio.to_thread(gpufleet, "decode", str(path), "--format", "json")
    assert [json.loads(line)["node"]["name"] for line in decoded.stdout.splitlines()] == ["node-a", "node-b"]


async def test_machine_that_the_hub_does_not_know_is_left_out(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await post(site, now())
        source = FleetSource(site.hub.url, "local", ("node-a", "node-x"), Access())
        with pytest.raises(CommandError):  # a mistake in the first poll
            await asyncio.to_thread(source.poll)
        source = FleetSource(site.hub.url, "local", ("node-a", "node-b"), Access())
        assert [name for name, _ in await asyncio.to_thread(source.poll)] == ["node-a", "node-b"]
        twin = Machine(name="node-b", machine_id="c" * 32)  # the name is ambiguous from here on
        await site.post(body(1, now(), sender="node-c", epoch="c" * 32, machine=twin))
        assert [name for name, _ in await asyncio.to_thread(source.poll)] == ["node-a"]


async def test_state_of_a_machine_is_recorded(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await post(site, now())
        assert (await site.request("/v1/machines/node-b", "DELETE"))[0] == 200
        polled = await asyncio.to_thread(FleetSource(site.hub.url, "local", (), Access()).poll)
    observation = observe_recorded([decode_snapshot(document) for _, document in polled])
    states = {node.name: node.state.split(",")[0] for node in observation.nodes}
    assert states == {"node-a": "", "node-b": "retired"}


async def test_cluster_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        await post(site, now())
        with pytest.raises(CommandError):
            await asyncio.to_thread(list, fetch_cluster_snapshots(site.hub.url, "local", Access(), most=1))
        with pytest.raises(CommandError):
            await asyncio.to_thread(FleetSource(site.hub.url, "other", (), Access()).poll)
        with pytest.raises(CommandError):
            await asyncio.to_thread(fetch_machine_snapshot, site.hub.url, "node-a", Access(), "other")


async def test_machine_of_a_hub_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "r"
    async with running_site(tmp_path / "hub") as site:
        await post(site, now())
        options = ["--hub", site.hub.url, "--machine", "node-a", "--duration", "1s"]
        done = await asyncio.to_thread(gpufleet, "record", str(path), *options)
        assert done.returncode == 0, done.stderr
        missing = await asyncio.to_thread(gpufleet, "record", str(path), "--hub", site.hub.url)
        assert (missing.returncode, "--machine" in missing.stderr) == (2, True)
    assert {one.node.name for one in snapshots_of(path)} == {"node-a"}
