"""Events of the fleet's GPUs, as an agent tells them."""

from collections.abc import Iterator

from gpufleet.model.event import Event
from gpufleet.model.event_kinds import EventKind
from gpufleet.model.time import NANOS
from gpufleet.model.view import View
from gpufleet.model.xid import xid
from gpufleet.simulate.fleet.faults import Fault, FaultKind

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
