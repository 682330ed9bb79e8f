"""Allocations of a virtual machine that an agent reads from inside: readings, series and events."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side
from gpufleet.model.wire.batch import MachineReport
from tests.fakes.batches import NODE, gpu_view, make_batch
from tests.web.hub.site import Site, now, running_site

VM = "c77c546c-c5a2-4093-bc1b-8051983e7a61"
GUEST = Machine(name="ml/train-0", kind=MachineKind.GUEST, system_uuid=VM, hypervisor="node-a")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def batch(seq: int, at: int, state: str = "ok", host: Machine = NODE, power: float = 77.0) -> bytes:
    """Encode a host with two GPUs and a guest with one. Every value of the host is 100."""
    gpu = gpu_view(7, side=Side.GUEST)
    inside = Sample(
        view=gpu,
        reader="nvidia_smi",
        lane=Lane.FAST,
        measured_at=at,
        values={"gpu_power_watts": power},
        provenance=Provenance.SLICE_GUEST,
    )
    own = Sample(
        view=None,
        reader="guests",
        lane=Lane.FAST,
        measured_at=at,
        values={"guest_state": state, "guest_problem": "" if state == "ok" else "the guest's error", "guest_gpus": 1},
    )
    samples = (inside, own) if state == "ok" else (own,)
    event = Event(view=gpu, kind="xid", code=79, at=at, attributes={"sources": "dcgm"})
    of_host = make_batch(seq, at, machine=host, sender=host.machine_id or "", epoch=host.machine_id or "")
    machine = msgspec.structs.replace(GUEST, hypervisor=host.name)
    guest = MachineReport(machine=machine, samples=samples, events=(event,) if state == "ok" else ())
    return encode(msgspec.structs.replace(of_host, reports=(*of_host.reports, guest)))


async def test_guest_allocation_is_answered_from_the_guest(site: Site) -> None:
    spec = {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": VM}, "tenant": "acme"}
    await site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": "2020-01-01T00:00:00Z"})
    _, before = await site.request("/v1/allocations/a/series?metric=gpu_power_watts&step=1s")
    assert (before["source"], before["reason"]) == ("unavailable", "guest_not_collected")
    await site.post(batch(1, now()))

    _, answer = await site.request("/v1/allocations/a/metrics")
    assert (answer["source"], answer["reason"]) == ("slice_guest", None)
    assert [one["readings"]["gpu_power_watts"]["value"] for one in answer["devices"]] == [77.0]
    _, past = await site.request("/v1/allocations/a/series?metric=gpu_power_watts&step=1s")
    assert past["source"] == "slice_guest"
    points = [point["value"] for one in past["series"] for point in one["points"] if point["value"] is not None]
    assert points == [77.0]
    _, events = await site.request("/v1/events?allocation=a")
    assert [(one["kind"], one["code"]) for one in events["events"]] == [("xid", 79)]
    _, nodes = await site.request("/v1/nodes")
    assert [one["machine"]["machine"]["name"] for one in nodes["items"]] == ["node-a"]

    await site.post(batch(2, now(), "no_driver"))
    _, gone = await site.request("/v1/allocations/a/metrics")
    assert (gone["source"], gone["reason"], gone["detail"]) == ("unavailable", "no_driver", "the guest's error")
    reading = gone["devices"][0]["readings"]["gpu_power_watts"]
    assert ("value" in reading, reading["last_known"]) == (False, 77.0)


OTHER_NODE = Machine(
    name="node-b", machine_id="b" * 32, system_uuid="11111111-0000-0000-0000-00000000000b", boot_id="b"
)


@pytest.mark.parametrize("host", [msgspec.structs.replace(NODE, name="renamed"), OTHER_NODE], ids=["renamed", "other"])
async def test_guest_history_survives_a_change_of_its_host(site: Site, host: Machine) -> None:
    """The host is renamed, or the virtual machine migrates to another one."""
    spec = {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": VM}, "tenant": "acme"}
    await site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": "2020-01-01T00:00:00Z"})
    start = now()
    await site.post(batch(1, start - 120 * NANOS))
    if host is OTHER_NODE:
        await site.post(batch(2, start - 60 * NANOS, "removed"))
    await site.post(batch(3, start, host=host, power=78.0))
    _, answer = await site.request("/v1/allocations/a/metrics")
    assert (answer["source"], answer["reason"]) == ("slice_guest", None)
    _, past = await site.request("/v1/allocations/a/series?metric=gpu_power_watts&step=1s")
    points = [point["value"] for one in past["series"] for point in one["points"] if point["value"] is not None]
    assert sorted(points) == [77.0, 78.0]
    _, events = await site.request("/v1/events?allocation=a")
    assert len(events["events"]) == 2
