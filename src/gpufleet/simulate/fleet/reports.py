"""What an agent on a node of the fleet tells at an instant: the node, and the guests that it reads.

Events of the fleet's GPUs, as an agent tells them.
"""

from collections.abc import Collection, Iterator

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event, EventKind
from gpufleet.model.holding import Holding, Verdict
from gpufleet.model.machine import NVIDIA_VENDOR, PCI_READER, PciFunction
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachineReport
from gpufleet.model.xid import xid
from gpufleet.simulate.fleet.faults import Fault, FaultKind
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.layout import Gpu, Guest, Node, Part, Work, pci_address, share_of
from gpufleet.simulate.fleet.values import (
    DRIVER_TEXTS,
    Said,
    Strain,
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
"""XID of a GPU that does not answer on the bus."""


def events_of(view: View, fault: Fault) -> Iterator[Event]:
    """Return what a fault of a GPU makes happen, each at its own instant."""
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


def xid_event(view: View, code: int, at: int) -> Event:
    """Return the event of an XID."""
    row = xid(code)
    attributes = {"name": row.name, "class": row.cls.value, "action": row.action.value, "sources": "nvml"}
    return Event(view=view, kind=EventKind.XID, code=code, at=at, attributes=attributes)


CONTROLLER_3D = 0x030200
GUESTS = "guests"
"""The reader of what an agent says of its guests."""

METHOD = "simulated"
"""How the fleet's holdings were established: nobody looked."""

PASS_SECONDS = 0.02
"""How long a pass of a reader takes, as its status says."""

_VFIO = Absent(Reason.BOUND_TO_VFIO, "it is handed to a guest")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a node.

    Attributes:
        at: the instant, nanoseconds since 1970.
        since: the look before; events after that one and up to this one are told.
        lanes: which are due.
        intervals: seconds between looks of each lane, as the readers' status says.
        ahead: nanoseconds by which the node's clock is ahead: what is told bears its time.
    """

    at: int
    since: int
    lanes: Collection[Lane]
    intervals: dict[Lane, float]
    ahead: int = 0

    @property
    def stamp(self) -> int:
        """The instant by the node's clock."""
        return self.at + self.ahead


def reports_of(fleet: Fleet, node: Node, look: Look) -> tuple[MachineReport, ...]:
    """Return what the agent of a node tells: of the node first, then of its guests."""
    return (_of_node(fleet, node, look), *(_of_guest(fleet, node, guest, look) for guest in node.guests))


def _of_node(fleet: Fleet, node: Node, look: Look) -> MachineReport:
    machine = fleet.machine(node, look.at)
    strains = [(gpu, fleet.strain(node, gpu, look.at)) for gpu in node.all_gpus]
    load = sum(now.load for _, now in strains) / len(strains) if strains else 0.0
    seen = strains if node.gpus else []
    samples = [
        sample for gpu, now in seen for sample in _of_gpu(fleet, node, gpu, now, look, Provenance.HOST_LOCAL_PROBE)
    ]
    boot = fleet.booted_at(node, look.at) // NANOS
    if Lane.FAST in look.lanes:
        samples.append(_sample(None, "host", Lane.FAST, look, host_fast(node, look.at, load), boot))
    if Lane.STATIC in look.lanes:
        samples.append(_sample(None, "host", Lane.STATIC, look, host_static(node, machine.boot_id or ""), boot))
        if node.gpus:
            samples.append(_sample(None, "nvml", Lane.STATIC, look, DRIVER_TEXTS, boot))
        samples += [_unread(fleet, number, look, boot) for number in range(len(node.all_gpus)) if not node.gpus]
    readers = [_status("host", lane, look, []) for lane in look.lanes if lane is not Lane.SLOW]
    if node.gpus:
        readers += [_status("nvml", lane, look, strains) for lane in look.lanes]
    return MachineReport(
        machine=machine,
        samples=tuple(samples),
        events=tuple(_events(fleet, node, node.gpus, look)),
        readers=tuple(readers),
        holdings=tuple(_holdings(node.all_gpus, look)) if _holdings_due(node, look) else (),
        inventory=_inventory(node) if Lane.STATIC in look.lanes else None,
    )


def _of_guest(fleet: Fleet, node: Node, guest: Guest, look: Look) -> MachineReport:
    strains = [(gpu, fleet.strain(node, gpu, look.at)) for gpu in guest.gpus]
    inside = Provenance.SLICE_GUEST
    samples = [sample for gpu, now in strains for sample in _of_gpu(fleet, node, gpu, now, look, inside)]
    samples.append(_sample(None, GUESTS, Lane.FAST, look, guest_fast(strains), 0, inside))
    return MachineReport(
        machine=guest.machine,
        samples=tuple(samples),
        events=tuple(_events(fleet, node, guest.gpus, look)),
        readers=tuple(_status("nvidia_smi", lane, look, strains) for lane in look.lanes),
    )


def _of_gpu(fleet: Fleet, node: Node, gpu: Gpu, now: Strain, look: Look, provenance: Provenance) -> Iterator[Sample]:
    """Return the samples of a GPU and of what it is cut into."""
    booted_at = fleet.booted_at(node, look.at)
    boot, at = booted_at // NANOS, look.at
    reader = "nvml" if provenance is Provenance.HOST_LOCAL_PROBE else "nvidia_smi"
    for lane in look.lanes:
        said = {
            Lane.FAST: lambda: gpu_fast(gpu, at, booted_at, now),
            Lane.SLOW: lambda: gpu_slow(gpu, at, now),
            Lane.STATIC: lambda: gpu_static(gpu, now),
        }[lane]()
        yield _sample(gpu.view, reader, lane, look, said, boot, provenance)
        for part in gpu.parts:
            of_part = _of_part(gpu, part, at, lane, now.silent)
            if of_part:
                yield _sample(part.view, reader, lane, look, of_part, boot, provenance)


def _of_part(gpu: Gpu, part: Part, at: int, lane: Lane, silent: Absent | None) -> Said:
    if lane is Lane.STATIC:
        return {}
    if part.slot is not None:
        return mig_fast(part, at, silent) if lane is Lane.FAST else mig_slow(part, silent)
    return vgpu_fast(gpu, part, at, silent) if lane is Lane.FAST else vgpu_slow(silent)


def _unread(fleet: Fleet, number: int, look: Look, boot: int) -> Sample:
    """Return a GPU that is bound to vfio-pci, as the bus shows it to its host."""
    view = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=pci_address(number))
    return _sample(view, PCI_READER, Lane.SLOW, look, {"gpu_state": _VFIO, "gpu_utilization_ratio": _VFIO}, boot)


def _sample(
    view: View | None,
    reader: str,
    lane: Lane,
    look: Look,
    said: Said,
    boot: int,
    provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
) -> Sample:
    return Sample(
        view=view,
        reader=reader,
        lane=lane,
        measured_at=look.stamp,
        values=said,
        provenance=provenance,
        driver_session=boot,
    )


def _status(reader: str, lane: Lane, look: Look, strains: list[tuple[Gpu, Strain]]) -> ReaderStatus:
    silent = [(gpu, now.silent) for gpu, now in strains if now.silent is not None]
    words = "; ".join(f"{gpu.view.key}: {why.detail} ({why.reason})" for gpu, why in silent)
    return ReaderStatus(
        reader=reader,
        lane=lane,
        state=ReaderState.PARTIAL if silent else ReaderState.OK,
        interval_seconds=look.intervals[lane],
        last_attempt=look.stamp,
        last_success=look.stamp,
        duration_seconds=PASS_SECONDS,
        error_class=silent[0][1].reason.value if silent else "",
        last_error=words,
    )


def _events(fleet: Fleet, node: Node, gpus: tuple[Gpu, ...], look: Look) -> Iterator[Event]:
    for gpu in gpus:
        for fault in fleet.gpu_faults(node, gpu):
            for event in events_of(gpu.view, fault):
                if look.since < event.at <= look.at:
                    yield msgspec.structs.replace(event, at=event.at + look.ahead)


def _inventory(node: Node) -> tuple[PciFunction, ...]:
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


def _held(gpus: tuple[Gpu, ...]) -> Iterator[tuple[View, Work]]:
    for gpu in gpus:
        if gpu.parts:
            yield from ((part.view, part.work) for part in gpu.parts)
        else:
            yield from ((gpu.view, work) for _, work in gpu.loads)


def _holdings_due(node: Node, look: Look) -> bool:
    """Tell whether holders are to be told: with the static lane, and whenever one has changed."""
    return Lane.STATIC in look.lanes or any(
        work.job(look.at) != work.job(look.since) for _, work in _held(node.all_gpus)
    )


def _holdings(gpus: tuple[Gpu, ...], look: Look) -> Iterator[Holding]:
    for view, work in _held(gpus):
        found = work.holder(look.at)
        if found is not None:
            holder, since = found
            yield Holding(
                view=view.key,
                holder=holder,
                share=share_of(view.kind),
                since=since + look.ahead,
                methods=(METHOD,),
                verdict=Verdict.DECLARED_ONLY,
            )
