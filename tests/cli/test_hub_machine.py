"""`gpufleet record --hub`: a machine as a hub has it."""

import asyncio
from pathlib import Path

import pytest

from gpufleet.cli.fetch import Access
from gpufleet.cli.hub_machine import fetch_machine_snapshot
from gpufleet.cli.options import CommandError
from gpufleet.codecs.batch import encode
from gpufleet.codecs.snapshot_json import decode_snapshot, encode_snapshot
from gpufleet.model.event import Event
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance
from gpufleet.model.time import to_ns
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.batches import EPOCH, NODE, body, gpu_sample, gpu_view
from tests.support.command import gpufleet
from tests.support.recordings import snapshots_of
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
