"""Reports of a simulated agent at an instant: its node, the guests that it reads, and events of their GPUs."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import msgspec

from gpufleet.agent.collect.state import EVENTS_READER
from gpufleet.agent.events.xids import XidCounts
from gpufleet.fleet.facts.metrics import FALLEN_OFF
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event, EventKind
from gpufleet.model.holdings import UnresolvedCount
from gpufleet.model.machine import NVIDIA_VENDOR, PCI_READER, PciFunction
from gpufleet.model.reading import DimValue, Provenance, Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachineReport
from gpufleet.model.xid import xid
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.holdings import SOURCE, device_states, holdings, holdings_due
from gpufleet.simulate.fleet.layout import FleetGpu, FleetGuest, FleetNode, GpuPart, host_view, pci_address
from gpufleet.simulate.fleet.value_faults import (
    RETIRED_PAGES,
    SECOND_READER,
    ReadingValues,
    change_dims,
    change_readings,
    value_fault_events,
)
from gpufleet.simulate.fleet.values import (
    DRIVER_TEXTS,
    GpuActivity,
    clock_events,
    driver_fast,
    gpu_fast,
    gpu_slow,
    gpu_static,
    guest_fast,
    host_fast,
    host_services,
    host_slow,
    host_static,
    mig_fast,
    mig_slow,
    vgpu_fast,
    vgpu_slow,
)

CONTAINED_ECC = 94
"""XID of an uncorrectable memory error that only its application noticed."""

XID_KINDS = frozenset({FaultKind.XID, FaultKind.GPU_LOST, FaultKind.ECC_ERROR})
"""Faults with an XID."""


def events_of(view: View, fault: FleetFault) -> Iterator[Event]:
    """Return the events of a GPU fault, each at its own instant."""
    match fault.kind:
        case FaultKind.GPU_LOST:
            yield xid_event(view, FALLEN_OFF, fault.begin)
            yield Event(view=view, kind=EventKind.GPU_LOST, at=fault.begin, attributes={"call": "nvmlDeviceGetUUID"})
            yield Event(view=view, kind=EventKind.GPU_RECOVERED, code=1, at=fault.end)  # reset within 1 s
        case FaultKind.GPU_HUNG:
            call = {"call": "nvmlDeviceGetPowerUsage"}
            yield Event(view=view, kind=EventKind.HANG_STARTED, at=fault.begin, attributes=call)
            yield Event(view=view, kind=EventKind.HANG_ENDED, at=fault.end, attributes=call)
        case FaultKind.HOT_GPU:
            seconds = str((fault.end - fault.begin) // NANOS)
            cause = {"cause": "hw_thermal"}
            yield Event(view=view, kind=EventKind.THROTTLE_STARTED, at=fault.begin, attributes=cause)
            ended = {**cause, "seconds": seconds}
            yield Event(view=view, kind=EventKind.THROTTLE_ENDED, at=fault.end, attributes=ended)
        case FaultKind.XID:
            yield xid_event(view, int(fault.amount), fault.begin)
        case FaultKind.ECC_ERROR:
            yield xid_event(view, CONTAINED_ECC, fault.begin)
            yield Event(view=view, kind=EventKind.ECC_UNCORRECTED, code=int(fault.amount), at=fault.begin)
            yield Event(view=view, kind=EventKind.ROW_REMAP_PENDING, at=fault.begin)
        case _:
            yield from value_fault_events(view, fault)


def xid_event(view: View, code: int, at: int) -> Event:
    """Return the event of an XID."""
    row = xid(code)
    attributes = {"name": row.name, "class": row.cls.value, "action": row.action.value, "sources": "nvml"}
    return Event(view=view, kind=EventKind.XID, code=code, at=at, attributes=attributes)


CONTROLLER_3D = 0x030200
GUESTS = "guests"
"""Reader of the agent's own report on its guests."""

PASS_SECONDS = 0.02
"""Duration of a reader pass in its status."""

SECOND = "dcgm"
"""Second reader of a GPU, and the exporter of another host's GPU."""

EXPORTER = "dcgm_exporter"
"""Exporter in place of the driver's reader, or of a GPU that is passed through."""

_UNREAD = frozenset({FaultKind.COLLECTOR_BROKEN, FaultKind.READERS_BROKEN})
"""Faults during which the agent reads no GPU."""

_VFIO = Absent(Reason.BOUND_TO_VFIO, "passed through to a guest")
_NOT_LISTED = Absent(Reason.DRIVER_ERROR, "the driver does not list this GPU")
_MISMATCH = Absent(Reason.DRIVER_MISMATCH, "library and kernel driver have different versions")

_Activities = Sequence[tuple[FleetGpu, GpuActivity]]


class CollectionPass(msgspec.Struct, frozen=True, kw_only=True):
    """Collection pass on a node.

    Attributes:
        at: the instant, nanoseconds since 1970.
        since: the previous pass; the report has the events after that, up to and including `at`.
        lanes: the lanes that are due.
        intervals: seconds between passes of each lane, for the readers' status.
        ahead: nanoseconds by which the node's clock is ahead; all reported times include it.
    """

    at: int
    since: int
    lanes: Collection[Lane]
    intervals: dict[Lane, float]
    ahead: int = 0

    @property
    def stamp(self) -> int:
        """Instant by the node's clock."""
        return self.at + self.ahead


def machine_reports(fleet: Fleet, node: FleetNode, pass_: CollectionPass) -> tuple[MachineReport, ...]:
    """Return the reports of a node's agent: on the node first, then on its guests."""
    node = fleet.node_at(node, pass_.at)
    return (_of_node(fleet, node, pass_), *(_of_guest(fleet, node, guest, pass_) for guest in node.guests))


def _of_node(fleet: Fleet, node: FleetNode, pass_: CollectionPass) -> MachineReport:
    faults = fleet.node_faults(node, pass_.at)
    kinds = {fault.kind for fault in faults}
    lanes = [lane for lane in pass_.lanes if lane is not Lane.STATIC or FaultKind.NO_INVENTORY not in kinds]
    own = msgspec.structs.replace(pass_, lanes=lanes)
    activities = [(gpu, fleet.activity(node, gpu, pass_.at)) for gpu in node.all_gpus]
    reads = not node.is_passthrough and not kinds & {*_UNREAD, FaultKind.HIDDEN_WHEN_IDLE}
    samples = _machine_samples(fleet, node, own, activities, faults, reads=reads)
    if FaultKind.HIDDEN_WHEN_IDLE in kinds:
        samples += _exporter_samples(fleet, node, activities, own)
    if reads:
        samples += _gpu_samples(fleet, node, activities, own, Provenance.HOST_LOCAL_PROBE)
    if Lane.FAST in lanes and reads:
        samples += [_xid_counts(fleet, node, gpu, own) for gpu in node.gpus if _has_xids(fleet, node, gpu)]
    if Lane.FAST in lanes:
        samples += _extra_samples(fleet, node, own)
    lists_pci = Lane.SLOW in lanes or Lane.STATIC in lanes
    if lists_pci:
        samples += _bus_samples(fleet, node, own, is_broken=FaultKind.DRIVER_BROKEN in kinds)
    has_holders = Lane.STATIC in pass_.lanes or holdings_due(fleet, node, pass_.since, pass_.at)
    return MachineReport(
        machine=fleet.machine(node, pass_.at),
        samples=tuple(samples),
        events=tuple(_events(fleet, node, node.gpus, pass_)),
        readers=tuple(_statuses(node, pass_, activities, kinds)),
        holdings=tuple(holdings(fleet, node, pass_.since, pass_.at, pass_.ahead)) if has_holders else (),
        device_holders=device_states(fleet, node, pass_.at) if has_holders else None,
        inventory=_inventory(node) if lists_pci and FaultKind.NO_PCI not in kinds else None,
        unresolved=(UnresolvedCount(source=SOURCE, names=_unresolved(faults)),) if has_holders else (),
    )


def _unresolved(faults: Sequence[FleetFault]) -> int:
    return sum(int(fault.amount) for fault in faults if fault.kind is FaultKind.UNRESOLVED_DEVICES)


def _of_guest(fleet: Fleet, node: FleetNode, guest: FleetGuest, pass_: CollectionPass) -> MachineReport:
    kinds = {fault.kind for fault in fleet.node_faults(node, pass_.at)}
    answers = not kinds & {*_UNREAD, FaultKind.GUEST_DOWN}
    activities = [(gpu, fleet.activity(node, gpu, pass_.at)) for gpu in guest.gpus]
    inside = Provenance.SLICE_GUEST
    samples = _gpu_samples(fleet, node, activities, pass_, inside) if answers else []
    values = guest_fast(guest, activities, pass_.stamp, answers=answers)
    samples.append(_sample(None, GUESTS, Lane.FAST, pass_, values, 0, inside))
    return MachineReport(
        machine=guest.machine,
        samples=tuple(samples),
        events=tuple(_events(fleet, node, guest.gpus, pass_)),
        readers=tuple(
            _status("nvidia_smi", lane, pass_, activities, "" if answers else "no access path answers")
            for lane in pass_.lanes
        ),
    )


def _machine_samples(
    fleet: Fleet,
    node: FleetNode,
    pass_: CollectionPass,
    activities: _Activities,
    faults: Sequence[FleetFault],
    *,
    reads: bool,
) -> list[Sample]:
    """Return the samples of a node itself; `reads` is whether the driver's reader works."""
    machine, booted_at = fleet.machine(node, pass_.at), fleet.booted_at(node, pass_.at)
    boot = booted_at // NANOS
    load = sum(now.load for _, now in activities) / len(activities) if activities else 0.0
    host = {
        Lane.FAST: lambda: host_fast(node, pass_.at, load),
        Lane.SLOW: lambda: host_slow(booted_at),
        Lane.STATIC: lambda: host_static(node, machine.boot_id or ""),
    }
    driver = {Lane.FAST: driver_fast(len(node.gpus)), Lane.STATIC: DRIVER_TEXTS}
    samples = []
    for lane in pass_.lanes:
        dims = change_dims(host_services(node), faults) if lane is Lane.SLOW else ()
        samples.append(_sample(None, "host", lane, pass_, host[lane](), boot, dims=dims))
        if reads and lane in driver:
            values = change_readings(driver[lane], faults, _always(driver[lane]))
            samples.append(_sample(None, "nvml", lane, pass_, values, boot))
    return samples


def _gpu_samples(
    fleet: Fleet, node: FleetNode, activities: _Activities, pass_: CollectionPass, provenance: Provenance
) -> list[Sample]:
    return [sample for gpu, now in activities for sample in _of_gpu(fleet, node, gpu, now, pass_, provenance)]


def _exporter_samples(fleet: Fleet, node: FleetNode, activities: _Activities, pass_: CollectionPass) -> list[Sample]:
    """Return the samples of an exporter that hides GPUs without pod."""
    shown = {gpu.number for gpu in fleet.shown_gpus(node, pass_.at)}
    own = msgspec.structs.replace(pass_, lanes=[lane for lane in pass_.lanes if lane is Lane.FAST])
    found = [one for one in activities if one[0].number in shown]
    return [
        msgspec.structs.replace(one, reader=EXPORTER, provenance=Provenance.IMPORTED)
        for one in _gpu_samples(fleet, node, found, own, Provenance.HOST_LOCAL_PROBE)
    ]


def _of_gpu(
    fleet: Fleet, node: FleetNode, gpu: FleetGpu, now: GpuActivity, pass_: CollectionPass, provenance: Provenance
) -> Iterator[Sample]:
    """Return the samples of a GPU and of its parts."""
    boot, is_host = fleet.booted_at(node, pass_.at) // NANOS, provenance is Provenance.HOST_LOCAL_PROBE
    reader = "nvml" if is_host else "nvidia_smi"
    faults = fleet.device_faults(node, gpu, pass_.at)
    kinds = {one.kind for one in fleet.gpu_faults(node, gpu)}
    for lane in pass_.lanes:
        values = _gpu_values(fleet, node, gpu, lane, pass_.at, now, is_host=is_host)
        if faults:
            values = change_readings(values, faults, partial(_healthy_values, fleet, node, gpu, lane, is_host))
        dims: tuple[DimValue, ...] = ()
        if lane is Lane.FAST and FaultKind.HOT_GPU in kinds:
            dims = clock_events(values)
        elif lane is Lane.SLOW and FaultKind.RETIRED_PAGES in kinds:
            dims = change_dims(RETIRED_PAGES, faults)
        yield _sample(gpu.view, reader, lane, pass_, values, boot, provenance, dims)
        for part in gpu.parts:
            of_part = _of_part(part, pass_.at, lane, now.absent)
            if of_part:
                yield _sample(part.view, reader, lane, pass_, of_part, boot, provenance)


def _gpu_values(
    fleet: Fleet, node: FleetNode, gpu: FleetGpu, lane: Lane, at: int, now: GpuActivity, *, is_host: bool
) -> ReadingValues:
    """Return a GPU's readings of a lane at an instant, without the faults that change readings."""
    if lane is Lane.FAST:
        return gpu_fast(gpu, at, fleet.booted_at(node, at), now)
    if lane is Lane.STATIC:
        return gpu_static(gpu, now)
    events: ReadingValues = {"gpu_driver_events_watched": 1} if is_host else {}
    return gpu_slow(gpu, at, now) | events


def _healthy_values(fleet: Fleet, node: FleetNode, gpu: FleetGpu, lane: Lane, is_host: bool, at: int) -> ReadingValues:
    return _gpu_values(fleet, node, gpu, lane, at, fleet.activity(node, gpu, at), is_host=is_host)


def _always(values: ReadingValues) -> Callable[[int], ReadingValues]:
    return lambda _: values


def _extra_samples(fleet: Fleet, node: FleetNode, pass_: CollectionPass) -> Iterator[Sample]:
    """Return the samples of readers that a GPU has only because of a fault."""
    for gpu in node.all_gpus:
        for fault in fleet.gpu_faults(node, gpu):
            is_present = fault.begin <= pass_.at < fault.end
            if fault.kind in SECOND_READER and not node.is_passthrough:
                values = _some_values(fleet, node, gpu, pass_.at, SECOND_READER[fault.kind].readings)
                faults = fleet.device_faults(node, gpu, pass_.at)
                values = change_readings(values, faults, _always(values), SECOND_READER)
                yield _sample(gpu.view, SECOND, Lane.FAST, pass_, values, 0)
            elif fault.kind is FaultKind.HOST_VALUES and is_present and node.is_passthrough:
                values = _some_values(fleet, node, gpu, pass_.at, ("gpu_utilization_ratio", "gpu_power_watts"))
                yield _sample(host_view(node, gpu), EXPORTER, Lane.FAST, pass_, values, 0, Provenance.IMPORTED)
            elif fault.kind is FaultKind.DUPLICATE_GPU and is_present:
                other = fleet.next_node(node)
                double = other.all_gpus[gpu.number]
                values = _some_values(fleet, other, double, pass_.at, ("gpu_utilization_ratio", "gpu_power_watts"))
                view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=double.view.uuid)
                yield _sample(view, SECOND, Lane.FAST, pass_, values, 0, Provenance.IMPORTED)


def _some_values(fleet: Fleet, node: FleetNode, gpu: FleetGpu, at: int, names: Collection[str]) -> ReadingValues:
    values = gpu_fast(gpu, at, fleet.booted_at(node, at), fleet.activity(node, gpu, at))
    return {name: values[name] for name in names}


def _has_xids(fleet: Fleet, node: FleetNode, gpu: FleetGpu) -> bool:
    """Return whether XIDs of a GPU are counted: only if it has some, or its node does not receive them for a while."""
    is_counted = any(one.kind in XID_KINDS for one in fleet.gpu_faults(node, gpu))
    return is_counted or any(one.kind is FaultKind.XID_BLIND for one in fleet.faults_of(node))


def _xid_counts(fleet: Fleet, node: FleetNode, gpu: FleetGpu, pass_: CollectionPass) -> Sample:
    """Return the counts of a GPU's XIDs since its node booted."""
    booted_at = fleet.booted_at(node, pass_.at)
    counts = XidCounts(since=booted_at)
    for fault in fleet.gpu_faults(node, gpu):
        if booted_at <= fault.begin <= pass_.at:
            counts.add(events_of(gpu.view, fault))
    is_blind = any(one.kind is FaultKind.XID_BLIND for one in fleet.node_faults(node, pass_.at))
    values, dims = counts.values(gpu.view, watched=not is_blind)
    sample = _sample(gpu.view, EVENTS_READER, Lane.EVENT, pass_, values, booted_at // NANOS)
    return msgspec.structs.replace(sample, dims=dims)


def _of_part(part: GpuPart, at: int, lane: Lane, absent: Absent | None) -> ReadingValues:
    if lane is Lane.STATIC:
        return {}
    if part.slot is not None:
        return mig_fast(part, at, absent) if lane is Lane.FAST else mig_slow(part, absent)
    return vgpu_fast(part, at, absent) if lane is Lane.FAST else vgpu_slow(part, at, absent)


def _bus_samples(fleet: Fleet, node: FleetNode, pass_: CollectionPass, *, is_broken: bool) -> Iterator[Sample]:
    """Return the samples of GPUs that only the PCI bus of a host shows."""
    boot = fleet.booted_at(node, pass_.at) // NANOS
    for gpu in node.all_gpus if node.is_passthrough else node.unlisted:
        why = _VFIO if node.is_passthrough else _MISMATCH if is_broken else _NOT_LISTED
        view = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=pci_address(gpu.number))
        yield _sample(view, PCI_READER, Lane.SLOW, pass_, {"gpu_state": why, "gpu_utilization_ratio": why}, boot)


def _sample(
    view: View | None,
    reader: str,
    lane: Lane,
    pass_: CollectionPass,
    values: ReadingValues,
    boot: int,
    provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
    dims: tuple[DimValue, ...] = (),
) -> Sample:
    return Sample(
        view=view,
        reader=reader,
        lane=lane,
        measured_at=pass_.stamp,
        values=values,
        dims=dims,
        provenance=provenance,
        driver_session=boot,
    )


def _statuses(
    node: FleetNode, pass_: CollectionPass, activities: _Activities, kinds: Collection[FaultKind]
) -> Iterator[ReaderStatus]:
    """Yield the statuses of a node's own readers."""
    broken = ""
    if not _UNREAD.isdisjoint(kinds):
        broken = "no answer of the driver"
    elif FaultKind.DRIVER_BROKEN in kinds:
        broken = _MISMATCH.detail
    for lane in pass_.lanes:
        unread = "no file could be read" if lane is Lane.STATIC and FaultKind.NO_INVENTORY in kinds else ""
        yield _status("host", lane, pass_, (), unread)
        if not node.is_passthrough and FaultKind.HIDDEN_WHEN_IDLE not in kinds:
            yield _status("nvml", lane, pass_, activities, broken or unread)


def _status(reader: str, lane: Lane, pass_: CollectionPass, activities: _Activities, problem: str = "") -> ReaderStatus:
    """Return the status of a lane; `problem` is why the whole pass failed, or empty."""
    absent = [(gpu, now.absent) for gpu, now in activities if now.absent is not None]
    errors = "; ".join(f"{gpu.view.key}: {why.detail} ({why.reason})" for gpu, why in absent)
    state = ReaderState.FAILED if problem else ReaderState.PARTIAL if absent else ReaderState.OK
    return ReaderStatus(
        reader=reader,
        lane=lane,
        state=state,
        interval_seconds=pass_.intervals[lane],
        last_attempt=pass_.stamp,
        last_success=None if problem else pass_.stamp,
        duration_seconds=PASS_SECONDS,
        error_class=Reason.READER_FAILED.value if problem else absent[0][1].reason.value if absent else "",
        last_error=problem or errors,
    )


def _events(fleet: Fleet, node: FleetNode, gpus: tuple[FleetGpu, ...], pass_: CollectionPass) -> Iterator[Event]:
    for gpu in gpus:
        for fault in fleet.gpu_faults(node, gpu):
            for event in events_of(gpu.view, fault):
                if pass_.since < event.at <= pass_.at:
                    yield msgspec.structs.replace(event, at=event.at + pass_.ahead)


def _inventory(node: FleetNode) -> tuple[PciFunction, ...]:
    gpus = sorted((*node.all_gpus, *node.unlisted), key=lambda one: one.number)
    return tuple(
        PciFunction(
            address=pci_address(gpu.number),
            vendor=NVIDIA_VENDOR,
            device=gpu.model.pci_device,
            class_code=CONTROLLER_3D,
            driver="vfio-pci" if node.is_passthrough else "nvidia",
            numa_node=2 * gpu.number // len(gpus) if gpu.number < len(gpus) else 1,
        )
        for gpu in gpus
    )
