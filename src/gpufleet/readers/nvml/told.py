"""What the driver tells by itself, as events."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.event import Event
from gpufleet.model.event_kinds import EventKind
from gpufleet.model.view import View
from gpufleet.readers.nvml.devices import Identity, address_of, view_of
from gpufleet.readers.nvml.protocol import AttachedRecord, EventRecord

KINDS = {
    0x8: EventKind.XID,
    0x100: EventKind.MIG_CHANGED,
    0x200: EventKind.ECC_STORM,
    0x400: EventKind.MEMORY_RETIRED,
    0x800: EventKind.MEMORY_NOT_RETIRED,
    0x1000: EventKind.POISON,
    0x2000: EventKind.FATAL_POISON,
    0x4000: EventKind.GPU_UNAVAILABLE,
}
"""nvmlEventType* (nvml.h) to kinds."""

NO_INSTANCE = 0xFFFFFFFF
SOURCE = "nvml"


def map_event(record: EventRecord, attached: AttachedRecord | None, shared: tuple[str, ...]) -> Event | None:
    """Return the event, or None for a type that none was asked for.

    Args:
        record: what the driver told.
        attached: which device stands behind its index, if that is known.
        shared: names that several GPUs claim: they name none of them.
    """
    kind = KINDS.get(record.kind)
    if kind is None:
        return None
    attributes = {"sources": SOURCE}
    for name, number in (("gpu_instance", record.gpu_instance), ("compute_instance", record.compute_instance)):
        if number != NO_INSTANCE:
            attributes[name] = str(number)
    code = record.data if kind is EventKind.XID else 0
    return Event(view=_view(record, attached, shared), kind=kind, code=code, at=record.at, attributes=attributes)


def is_watched(code: int | None) -> int | Absent:
    """Return 1 if the driver tells of events of a GPU, 0 if it does not; `code` is that of the registration."""
    return Absent(Reason.NO_DATA, "nvmlDeviceRegisterEvents") if code is None else int(code == 0)


def _view(record: EventRecord, attached: AttachedRecord | None, shared: tuple[str, ...]) -> View | None:
    if attached is None:
        return None
    uuid = None if attached.uuid in shared else attached.uuid or None
    pci = address_of(attached.pci)
    identity = Identity(uuid, None if pci in shared else pci)
    return view_of(identity, record.index) if identity.uuid or identity.pci else None
