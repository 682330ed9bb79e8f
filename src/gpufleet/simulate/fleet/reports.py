"""Reports of a simulated agent at an instant: its node, the guests that it reads, and events of their GPUs."""

from collections.abc import Collection, Iterator

import msgspec

from gpufleet.agent.collect.state import EVENTS_READER
from gpufleet.agent.events.timeline import XidCounts
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event, EventKind
from gpufleet.model.holdings import DeviceState, HolderKind, HolderState, Holding, HoldingVerdict
from gpufleet.model.machine import NVIDIA_VENDOR, PCI_READER, PciFunction
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachineReport
from gpufleet.model.xid import xid
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.layout import FleetGpu, FleetGuest, FleetNode, GpuPart, Workload, pci_address, sharing_of
from gpufleet.simulate.fleet.values import (
    DRIVER_TEXTS,
    GpuActivity,
    ReadingValues,
    clock_events,
    gpu_fast,
    gpu_slow,
    gpu_static,
    guest_fast,
    host_fast,
    host_static,
    mig_fast,
    mig_slow,
    vgpu_fast,
    vgpu_slow,
)

FALLEN_OFF = 79
"""XID of a GPU that has fallen off the bus."""

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
            yield Event(view=view, kind=EventKind.GPU_RECOVERED, at=fault.end)
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


def xid_event(view: View, code: int, at: int) -> Event:
    """Return the event of an XID."""
    row = xid(code)
    attributes = {"name": row.name, "class": row.cls.value, "action": row.action.value, "sources": "nvml"}
    return Event(view=view, kind=EventKind.XID, code=code, at=at, attributes=attributes)


CONTROLLER_3D = 0x030200
GUESTS = "guests"
"""Reader of the agent's own report on its guests."""

METHOD = "simulated"
"""Method of the fleet's holdings: they are not observed."""

PASS_SECONDS = 0.02
"""Duration of a reader pass in its status."""

_VFIO = Absent(Reason.BOUND_TO_VFIO, "passed through to a guest")


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
    return (_of_node(fleet, node, pass_), *(_of_guest(fleet, node, guest, pass_) for guest in node.guests))


def _of_node(fleet: Fleet, node: FleetNode, pass_: CollectionPass) -> MachineReport:
    machine = fleet.machine(node, pass_.at)
    activities = [(gpu, fleet.activity(node, gpu, pass_.at)) for gpu in node.all_gpus]
    load = sum(now.load for _, now in activities) / len(activities) if activities else 0.0
    seen = activities if node.gpus else []
    samples = [
        sample for gpu, now in seen for sample in _of_gpu(fleet, node, gpu, now, pass_, Provenance.HOST_LOCAL_PROBE)
    ]
    boot = fleet.booted_at(node, pass_.at) // NANOS
    if Lane.FAST in pass_.lanes:
        samples += [_xid_counts(fleet, node, gpu, pass_) for gpu in node.gpus if _has_xids(fleet, node, gpu)]
        samples.append(_sample(None, "host", Lane.FAST, pass_, host_fast(node, pass_.at, load), boot))
    if Lane.STATIC in pass_.lanes:
        samples.append(_sample(None, "host", Lane.STATIC, pass_, host_static(node, machine.boot_id or ""), boot))
        if node.gpus:
            samples.append(_sample(None, "nvml", Lane.STATIC, pass_, DRIVER_TEXTS, boot))
        samples += [_unread(fleet, number, pass_, boot) for number in range(len(node.all_gpus)) if not node.gpus]
    has_holders = _holdings_due(node, pass_)
    readers = [_status("host", lane, pass_, []) for lane in pass_.lanes if lane is not Lane.SLOW]
    if node.gpus:
        readers += [_status("nvml", lane, pass_, activities) for lane in pass_.lanes]
    return MachineReport(
        machine=machine,
        samples=tuple(samples),
        events=tuple(_events(fleet, node, node.gpus, pass_)),
        readers=tuple(readers),
        holdings=tuple(_holdings(node.all_gpus, pass_)) if has_holders else (),
        device_holders=_device_states(node.all_gpus, pass_.at) if has_holders else None,
        inventory=_inventory(node) if Lane.STATIC in pass_.lanes else None,
    )


def _of_guest(fleet: Fleet, node: FleetNode, guest: FleetGuest, pass_: CollectionPass) -> MachineReport:
    activities = [(gpu, fleet.activity(node, gpu, pass_.at)) for gpu in guest.gpus]
    inside = Provenance.SLICE_GUEST
    samples = [sample for gpu, now in activities for sample in _of_gpu(fleet, node, gpu, now, pass_, inside)]
    samples.append(_sample(None, GUESTS, Lane.FAST, pass_, guest_fast(activities), 0, inside))
    return MachineReport(
        machine=guest.machine,
        samples=tuple(samples),
        events=tuple(_events(fleet, node, guest.gpus, pass_)),
        readers=tuple(_status("nvidia_smi", lane, pass_, activities) for lane in pass_.lanes),
    )


def _of_gpu(
    fleet: Fleet, node: FleetNode, gpu: FleetGpu, now: GpuActivity, pass_: CollectionPass, provenance: Provenance
) -> Iterator[Sample]:
    """Return the samples of a GPU and of its parts."""
    booted_at = fleet.booted_at(node, pass_.at)
    boot, at = booted_at // NANOS, pass_.at
    reader = "nvml" if provenance is Provenance.HOST_LOCAL_PROBE else "nvidia_smi"
    for lane in pass_.lanes:
        values = {
            Lane.FAST: lambda: gpu_fast(gpu, at, booted_at, now),
            Lane.SLOW: lambda: gpu_slow(gpu, at, now),
            Lane.STATIC: lambda: gpu_static(gpu, now),
        }[lane]()
        sample = _sample(gpu.view, reader, lane, pass_, values, boot, provenance)
        if lane is Lane.FAST and any(one.kind is FaultKind.HOT_GPU for one in fleet.gpu_faults(node, gpu)):
            sample = msgspec.structs.replace(sample, dims=clock_events(values))
        yield sample
        for part in gpu.parts:
            of_part = _of_part(gpu, part, at, lane, now.absent)
            if of_part:
                yield _sample(part.view, reader, lane, pass_, of_part, boot, provenance)


def _has_xids(fleet: Fleet, node: FleetNode, gpu: FleetGpu) -> bool:
    return any(one.kind in XID_KINDS for one in fleet.gpu_faults(node, gpu))


def _xid_counts(fleet: Fleet, node: FleetNode, gpu: FleetGpu, pass_: CollectionPass) -> Sample:
    """Return the counts of a GPU's XIDs since its node booted."""
    booted_at = fleet.booted_at(node, pass_.at)
    counts = XidCounts(since=booted_at)
    for fault in fleet.gpu_faults(node, gpu):
        if booted_at <= fault.begin <= pass_.at:
            counts.add(events_of(gpu.view, fault))
    values, dims = counts.values(gpu.view.key, watched=True)
    sample = _sample(gpu.view, EVENTS_READER, Lane.EVENT, pass_, values, booted_at // NANOS)
    return msgspec.structs.replace(sample, dims=dims)


def _of_part(gpu: FleetGpu, part: GpuPart, at: int, lane: Lane, absent: Absent | None) -> ReadingValues:
    if lane is Lane.STATIC:
        return {}
    if part.slot is not None:
        return mig_fast(part, at, absent) if lane is Lane.FAST else mig_slow(part, absent)
    return vgpu_fast(gpu, part, at, absent) if lane is Lane.FAST else vgpu_slow(absent)


def _unread(fleet: Fleet, number: int, pass_: CollectionPass, boot: int) -> Sample:
    """Return the sample of a GPU that is bound to vfio-pci, as the PCI bus of the host shows it."""
    view = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=pci_address(number))
    return _sample(view, PCI_READER, Lane.SLOW, pass_, {"gpu_state": _VFIO, "gpu_utilization_ratio": _VFIO}, boot)


def _sample(
    view: View | None,
    reader: str,
    lane: Lane,
    pass_: CollectionPass,
    values: ReadingValues,
    boot: int,
    provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
) -> Sample:
    return Sample(
        view=view,
        reader=reader,
        lane=lane,
        measured_at=pass_.stamp,
        values=values,
        provenance=provenance,
        driver_session=boot,
    )


def _status(
    reader: str, lane: Lane, pass_: CollectionPass, activities: list[tuple[FleetGpu, GpuActivity]]
) -> ReaderStatus:
    failed = [(gpu, now.absent) for gpu, now in activities if now.absent is not None]
    errors = "; ".join(f"{gpu.view.key}: {why.detail} ({why.reason})" for gpu, why in failed)
    return ReaderStatus(
        reader=reader,
        lane=lane,
        state=ReaderState.PARTIAL if failed else ReaderState.OK,
        interval_seconds=pass_.intervals[lane],
        last_attempt=pass_.stamp,
        last_success=pass_.stamp,
        duration_seconds=PASS_SECONDS,
        error_class=failed[0][1].reason.value if failed else "",
        last_error=errors,
    )


def _events(fleet: Fleet, node: FleetNode, gpus: tuple[FleetGpu, ...], pass_: CollectionPass) -> Iterator[Event]:
    for gpu in gpus:
        for fault in fleet.gpu_faults(node, gpu):
            for event in events_of(gpu.view, fault):
                if pass_.since < event.at <= pass_.at:
                    yield msgspec.structs.replace(event, at=event.at + pass_.ahead)


def _inventory(node: FleetNode) -> tuple[PciFunction, ...]:
    return tuple(
        PciFunction(
            address=pci_address(number),
            vendor=NVIDIA_VENDOR,
            device=gpu.model.pci_device,
            class_code=CONTROLLER_3D,
            driver="nvidia" if node.gpus else "vfio-pci",
            numa_node=2 * number // max(1, len(node.all_gpus)),
        )
        for number, gpu in enumerate(node.all_gpus)
    )


def _held(gpus: tuple[FleetGpu, ...]) -> Iterator[tuple[View, Workload]]:
    for gpu in gpus:
        if gpu.parts:
            yield from ((part.view, part.work) for part in gpu.parts)
        else:
            yield from ((gpu.view, work) for _, work in gpu.loads)


def _holdings_due(node: FleetNode, pass_: CollectionPass) -> bool:
    """Return whether holdings are reported: with the static lane, and whenever a holder has changed."""
    return Lane.STATIC in pass_.lanes or any(
        work.job(pass_.at) != work.job(pass_.since) for _, work in _held(node.all_gpus)
    )


def _device_states(gpus: tuple[FleetGpu, ...], at: int) -> tuple[DeviceState, ...]:
    held = {view.key: False for view, _ in _held(gpus)}
    held.update({view.key: True for view, work in _held(gpus) if work.holder(at) is not None})
    return tuple(
        DeviceState(view=key, state=HolderState.HELD if is_held else HolderState.FREE) for key, is_held in held.items()
    )


def _holdings(gpus: tuple[FleetGpu, ...], pass_: CollectionPass) -> Iterator[Holding]:
    for view, work in _held(gpus):
        before, now = work.holder(pass_.since), work.holder(pass_.at)
        ended = [before] if before != now else []
        for found in (*ended, now):
            if found is not None:
                holder, since, until = found
                yield Holding(
                    view=view.key,
                    holder=holder,
                    container="main" if holder.kind is HolderKind.POD else "",
                    share=sharing_of(view.kind),
                    since=since + pass_.ahead,
                    until=until + pass_.ahead if found is not now else None,
                    methods=(METHOD,),
                    verdict=HoldingVerdict.DECLARED_ONLY,
                )
