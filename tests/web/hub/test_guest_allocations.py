"""Allocations of a virtual machine that an agent reads from inside: readings, series and events."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachineReport
from tests.fakes.batches import NODE, gpu_sample, gpu_view, make_batch
from tests.web.hub.site import Site, now, running_site

VM = "c77c546c-c5a2-4093-bc1b-8051983e7a61"
MINUTE = 60 * NANOS
GUEST = Machine(name="ml/train-0", kind=MachineKind.GUEST, system_uuid=VM, hypervisor="node-a")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def batch(seq: int, at: int, state: str = "ok", host: Machine = NODE, power: float = 77.0, number: int = 7) -> bytes:
    """Encode a host with two GPUs and a guest with one. Every value of the host is 100."""
    gpu = gpu_view(number, side=Side.GUEST)
    inside = Sample(
        view=gpu,
        reader="nvidia_smi",
        lane=Lane.FAST,
        measured_at=at,
        values={"gpu_power_watts": power, "gpu_pci_address": "0000:00:05.0"},
        provenance=Provenance.SLICE_GUEST,
    )
    own = Sample(
        view=None,
        reader="guests",
        lane=Lane.FAST,
        measured_at=at,
        values={
            "guest_state": state,
            "guest_state_timestamp_seconds": at / NANOS,
            "guest_problem": "" if state == "ok" else "the guest's error",
            "guest_gpus": 1,
        },
    )
    samples = (inside, own) if state == "ok" else (own,)
    event = Event(view=gpu, kind="xid", code=79, at=at, attributes={"sources": "dcgm", "text": str(power)})
    of_host = make_batch(seq, at, machine=host, sender=host.machine_id or "", epoch=host.machine_id or "")
    machine = msgspec.structs.replace(GUEST, hypervisor=host.name)
    guest = MachineReport(machine=machine, samples=samples, events=(event,) if state == "ok" else ())
    return encode(msgspec.structs.replace(of_host, reports=(*of_host.reports, guest)))


async def lose_vgpu(site: Site, at: int, *guests: MachineReport) -> None:
    """Report a vGPU of the virtual machine, and then that its GPU is lost: its host still lists it."""
    spec = {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": VM}, "valid_from": "2020-01-01T00:00:00Z"}
    await site.request("/v1/allocations/a", "PUT", spec)
    view = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="vgpu-1", parent=gpu_view(1).key)
    lost = Absent(Reason.GPU_LOST)
    works = {"gpu_memory_used_bytes": 5, "vgpu_vm_id": VM, "vgpu_vm_id_kind": "uuid"}
    for seq, of_vgpu in (1, works), (2, dict.fromkeys(works, lost)):
        samples = gpu_sample(gpu_view(1), at + seq, gpu_power_watts=lost), gpu_sample(view, at + seq, **of_vgpu)
        sent = make_batch(seq, at + seq, samples=samples)
        await site.post(encode(msgspec.structs.replace(sent, reports=(*sent.reports, *guests))))


@pytest.mark.parametrize("state", [None, "not_enabled", "removed"])
async def test_virtual_machine_reads_that_the_gpu_of_its_vgpu_is_lost(site: Site, state: str | None) -> None:
    """The driver then does not show who has the vGPU: the virtual machine that had it last, also if an agent knows it.

    `state` is that of the guest at its agent.
    """
    at = now() - 10 * NANOS
    values: dict[str, int | float | str | Absent] = {"guest_state": state or "", "guest_problem": "", "guest_gpus": 1}
    own = Sample(view=None, reader="guests", lane=Lane.FAST, measured_at=at, values=values)
    await lose_vgpu(site, at, *([] if state is None else [MachineReport(machine=GUEST, samples=(own,))]))
    _, found = await site.request("/v1/allocations/a/metrics")
    assert (found["source"], found["aggregate"]["coverage"]) == ("slice_vgpu_host", "0 of 1 devices")
    (device,) = found["devices"]
    assert {reading["absent"] for reading in device["readings"].values()} == {"gpu_lost"}


@pytest.mark.parametrize("state", ["ok", "not_enabled"])
async def test_lost_vgpu_stays_behind_when_its_virtual_machine_moves(site: Site, state: str) -> None:
    """The virtual machine has a whole GPU of another host."""
    at = now() - 10 * NANOS
    await lose_vgpu(site, at)
    await site.post(batch(3, at + 3, state, OTHER_NODE))
    _, found = await site.request("/v1/allocations/a/metrics")
    shown = {"ok": ("slice_guest", None, ["GPU-7"]), "not_enabled": ("unavailable", "not_enabled", [])}[state]
    assert (found["source"], found["reason"], [one["uuid"] for one in found["devices"]]) == shown


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


async def test_backlog_of_a_renamed_host_is_of_the_same_guest(site: Site) -> None:
    """The host was renamed, and another one has its name, when the backlog of the former name arrives."""
    spec = {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": VM}, "tenant": "acme"}
    await site.request("/v1/allocations/a", "PUT", {**spec, "valid_from": "2020-01-01T00:00:00Z"})
    start, renamed = now() - 600 * NANOS, msgspec.structs.replace(NODE, name="renamed")
    await site.post(batch(1, start), batch(9, start + 500 * NANOS, host=renamed, power=79.0))
    other = msgspec.structs.replace(OTHER_NODE, name=NODE.name)
    await site.post(encode(make_batch(1, start + 510 * NANOS, machine=other, sender="other", epoch="0" * 32)))
    await site.post(batch(2, start + 60 * NANOS, power=78.0))
    await site.post(batch(10, now(), host=renamed, power=80.0))
    machines = {one["id"]: one["machine"]["name"] for one in (await site.request("/v1/machines"))[1]["items"]}
    assert sorted(machines.values()) == ["ml/train-0", NODE.name, "renamed"]
    _, past = await site.request("/v1/allocations/a/series?metric=gpu_power_watts&step=1s")
    points = [point["value"] for one in past["series"] for point in one["points"] if point["value"] is not None]
    assert (past["detail"], sorted(points)) == ("", [77.0, 78.0, 79.0, 80.0])


THIRD_NODE = Machine(
    name="node-c", machine_id="c" * 32, system_uuid="11111111-0000-0000-0000-00000000000c", boot_id="c"
)
HOSTS = (NODE, OTHER_NODE, THIRD_NODE)


class GuestReports:
    """Reports of a virtual machine by several hosts, each with a power value of its own."""

    def __init__(self, site: Site, minutes: int = 60) -> None:
        self.site = site
        self.minutes = minutes
        self.start = now() - minutes * MINUTE
        self._seq = 0
        self._bodies: list[bytes] = []

    async def allocate(self, name: str, tenant: str, start: int = 0, **spec: str) -> None:
        target = {"cluster": "local", "vm_uuid": VM}
        document = {"kind": "gpu_slice", "target": target, "tenant": tenant, "valid_from": self.time(start), **spec}
        assert (await self.site.request(f"/v1/allocations/{name}", "PUT", document))[0] == 201

    def report(self, minute: int, *hosts: Machine) -> None:
        """Report the virtual machine by hosts: the value is the minute, and more by 1000 for each further host."""
        self._seq += 1
        at = self.start + minute * MINUTE
        self._bodies += [
            batch(self._seq, at, host=host, power=value_of(minute, host), number=HOSTS.index(host)) for host in hosts
        ]

    async def post(self) -> None:
        """Post what was reported since the last call."""
        await self.site.post(*self._bodies)
        self._bodies.clear()

    def time(self, minute: float) -> str:
        return to_datetime(self.start + int(minute * MINUTE)).isoformat().replace("+00:00", "Z")

    async def series(self, name: str) -> dict[str, Any]:
        window = f"start={self.time(0)}&end={self.time(self.minutes)}&step=60s"
        path = f"/v1/allocations/{name}/series?metric=gpu_power_watts&{window}"
        found: dict[str, Any] = (await self.site.request(path))[1]
        return found

    async def shown(self, name: str = "a") -> set[float]:
        """Return the values that the series and the events of an allocation show; both are the same."""
        series = (await self.series(name))["series"]
        values = {point["value"] for one in series for point in one["points"] if point["value"] is not None}
        path = f"/v1/events?allocation={name}&since={self.time(0)}&limit=1000"
        events = (await self.site.request(path))[1]["events"]
        assert {float(event["attributes"]["text"]) for event in events} == values
        return values

    async def usage(self, end: int) -> dict[str, Any]:
        window = f"start={self.time(0)}&end={self.time(end)}&group_by=allocation"
        found: dict[str, Any] = (await self.site.request(f"/v1/usage?{window}"))[1]
        return found


def value_of(minute: int, host: Machine) -> float:
    return minute + 1000.0 * HOSTS.index(host)


@pytest.fixture
async def reports(site: Site) -> GuestReports:
    found = GuestReports(site)
    await found.allocate("a", "acme")
    return found


async def test_clone_at_the_same_time_is_ambiguous_on_all_surfaces(reports: GuestReports) -> None:
    for minute in range(0, 40, 2):
        reports.report(minute, NODE, *([OTHER_NODE] if 10 <= minute < 30 else []))
    await reports.post()
    assert await reports.shown() == {float(minute) for minute in (*range(0, 10, 2), *range(30, 40, 2))}
    series = await reports.series("a")
    assert (series["source"], bool(series["detail"])) == ("slice_guest", True)
    usage = await reports.usage(40)
    assert usage["total"]["held_gpu_hours"] == pytest.approx(40 / 60)
    unresolved = [(one["allocation"], one["devices"], one["reason"]) for one in usage["unresolved"]]
    assert unresolved == [("a", 1, "ambiguous_target")]
    assert (await reports.usage(9))["unresolved"] == []


async def test_live_clone_is_ambiguous_from_its_first_report(reports: GuestReports) -> None:
    for minute in range(50, 59):
        reports.report(minute, NODE)
    reports.report(59, NODE, OTHER_NODE)
    await reports.post()
    _, answer = await reports.site.request("/v1/allocations/a/metrics")
    assert (answer["reason"], answer["devices"]) == ("ambiguous_target", [])
    assert await reports.shown() == {float(minute) for minute in range(50, 59)}
    window = f"start={reports.time(59.1)}&step=1s"
    _, past = await reports.site.request(f"/v1/allocations/a/series?metric=gpu_power_watts&{window}")
    assert (past["source"], past["reason"], past["series"]) == ("unavailable", "ambiguous_target", [])


async def test_short_clone_is_no_migration(reports: GuestReports) -> None:
    for minute in range(20):
        reports.report(minute, NODE, *([OTHER_NODE] if minute == 10 else []))
    await reports.post()
    assert await reports.shown() == {float(minute) for minute in range(20) if minute != 10}


async def test_virtual_machine_that_returns_has_one_guest_at_a_time(reports: GuestReports) -> None:
    for minute in range(40):
        reports.report(minute, OTHER_NODE if 12 <= minute < 28 else NODE)
    reports.report(40, NODE)
    await reports.post()
    away = range(12, 28)
    assert await reports.shown() == {value_of(minute, HOSTS[minute in away]) for minute in range(41)}
    usage = await reports.usage(40)
    assert (usage["total"]["held_gpu_hours"], usage["unresolved"]) == (pytest.approx(40 / 60), [])
