"""Events of devices and machines, and the table of event kinds."""

import datetime as dt
import enum
from typing import Annotated, NamedTuple

import msgspec

from gpufleet.model.time import to_datetime
from gpufleet.model.view import View

RECENT_EVENTS = 200
"""Number of newest events that an agent keeps in memory for snapshots and pages."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Event of a device or machine.

    Attributes:
        view: the device, or None for the machine.
        kind: a name of `EventKind`; newer senders may have more.
        code: code of the event (such as an XID), or 0.
        at: nanoseconds since 1970 UTC.
        attributes: additional short texts.
    """

    view: View | None
    kind: str
    code: int = 0
    at: int
    attributes: Annotated[dict[str, str], msgspec.Meta(max_length=64)] = {}


class EventReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Event in documents.

    Attributes:
        at: time of the event.
        kind, code, attributes: as in `Event`.
        device: key of the view, or None for the machine.
        uuid, pci_address: of the view.
    """

    at: dt.datetime
    kind: str
    code: int = 0
    device: str | None = None
    uuid: str | None = None
    pci_address: str | None = None
    attributes: dict[str, str] = {}


def event_report(event: Event) -> EventReport:
    """Return the event for documents."""
    view = event.view
    return EventReport(
        at=to_datetime(event.at),
        kind=event.kind,
        code=event.code,
        device=view.key if view else None,
        uuid=view.uuid if view else None,
        pci_address=view.pci_address if view else None,
        attributes=dict(event.attributes),
    )


class EventKind(enum.StrEnum):
    """Kind of an event. Stores and hubs accept other kinds too: a sender may be newer."""

    # the driver reports about a device
    XID = "xid"
    SXID = "sxid"
    GPU_LOST = "gpu_lost"
    GPU_UNAVAILABLE = "gpu_unavailable"
    GPU_RESET_REQUIRED = "gpu_reset_required"
    GPU_FAILED = "gpu_failed"
    GPU_RECOVERED = "gpu_recovered"
    GPU_INIT_FAILED = "gpu_init_failed"
    GPU_RESET = "gpu_reset"
    VGPU_FAILED = "vgpu_failed"
    # the driver
    HANG_STARTED = "hang_started"
    HANG_ENDED = "hang_ended"
    DRIVER_LOADED = "driver_loaded"
    DRIVER_RELOADED = "driver_reloaded"
    DRIVER_UPGRADED = "driver_upgraded"
    DRIVER_MISMATCH = "driver_mismatch"
    DRIVER_FAILED = "driver_failed"
    DRIVER_WORKS = "driver_works"
    # the bus
    GPU_ADDED = "gpu_added"
    GPU_REMOVED = "gpu_removed"
    DRIVER_BOUND = "driver_bound"
    DRIVER_UNBOUND = "driver_unbound"
    # derived from readings
    MIG_CHANGED = "mig_changed"
    THROTTLE_STARTED = "throttle_started"
    THROTTLE_ENDED = "throttle_ended"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ECC_STORM = "ecc_storm"
    MEMORY_RETIRED = "memory_retired"
    MEMORY_NOT_RETIRED = "memory_not_retired"
    POISON = "poison"
    FATAL_POISON = "fatal_poison"
    ROW_REMAP_PENDING = "row_remap_pending"
    ROW_REMAP_FAILED = "row_remap_failed"
    RECOVERY_ACTION_CHANGED = "recovery_action_changed"
    # the agent
    DEVICES_RELEASED = "devices_released"
    DEVICES_RESUMED = "devices_resumed"


class EventKindRow(NamedTuple):
    """Row of the table of event kinds.

    Attributes:
        kind: name.
        help: one-line description.
        code: meaning of the code, or empty if it is always 0.
        attributes: names of the attributes.
        reporter: source of the event.
    """

    kind: EventKind
    help: str
    code: str
    attributes: tuple[str, ...]
    reporter: str


_K = EventKind
_PARTS = ("gpu_instance", "compute_instance")
_STATE = "every reader of GPUs"
_RESET_CODE = "greatest possible age of the reset, in seconds; 0 if no reset is proven"
_LOG, _NVML, _READINGS, _BUS = "kernel log", "NVML", "change of readings", "change of the PCI bus"

EVENT_KINDS: dict[str, EventKindRow] = {
    row.kind: row
    for row in (
        EventKindRow(_K.XID, "The driver reported an error of the GPU", "the XID",
                ("name", "class", "action", "sources", "count", "message", "pid", "process", "gpu_instance",
                 "compute_instance", "recovery"), f"{_LOG}, {_NVML}, DCGM"),
        EventKindRow(_K.SXID, "The driver reported an error of an NVSwitch", "the SXID",
                ("pci_address", "switch", "severity", "link", "message"), _LOG),
        EventKindRow(_K.GPU_LOST, "The GPU no longer answers on the bus", "", ("sources", "call", "message"),
                f"{_STATE}, {_LOG}"),
        EventKindRow(_K.GPU_UNAVAILABLE, "The driver reports the GPU as unavailable", "", ("sources", *_PARTS), _NVML),
        EventKindRow(_K.GPU_RESET_REQUIRED, "The GPU answers nothing until it is reset", "",
                ("sources", "call"), _STATE),
        EventKindRow(_K.GPU_FAILED, "Core readings of the GPU fail, or no reading has a value", "",
                ("sources", "call"), _STATE),
        EventKindRow(_K.GPU_RECOVERED, "A GPU that failed, was lost or needed a reset answers again",
                _RESET_CODE,
                ("sources",), _STATE),
        EventKindRow(_K.GPU_INIT_FAILED, "The driver could not start the GPU", "", ("message",), _LOG),
        EventKindRow(_K.GPU_RESET, "The GPU was reset while the driver stayed loaded", _RESET_CODE, ("evidence",),
                _READINGS),
        EventKindRow(_K.VGPU_FAILED, "The vGPU manager reported a failure of an instance", "", ("instance", "message"),
                _LOG),
        EventKindRow(_K.HANG_STARTED, "A driver call about the GPU does not return", "", ("call",), _NVML),
        EventKindRow(_K.HANG_ENDED, "The driver call returned", "", ("call",), _NVML),
        EventKindRow(_K.DRIVER_LOADED, "The kernel loaded the driver", "", ("version",), _LOG),
        EventKindRow(_K.DRIVER_RELOADED, "The driver was reloaded: its counters start again", _RESET_CODE,
                (), _READINGS),
        EventKindRow(_K.DRIVER_UPGRADED, "The version of the driver changed", "", ("from", "to"), _READINGS),
        EventKindRow(_K.DRIVER_MISMATCH, "Library and kernel driver have different versions", "", ("message",),
                f"{_LOG}, {_READINGS}"),
        EventKindRow(_K.DRIVER_FAILED, "The driver stopped working for this agent", "", ("state", "before"), _READINGS),
        EventKindRow(_K.DRIVER_WORKS, "The driver works again", "", ("before",), _READINGS),
        EventKindRow(_K.GPU_ADDED, "A GPU appeared on the bus", "", ("driver",), _BUS),
        EventKindRow(_K.GPU_REMOVED, "The GPU disappeared from the bus", "", ("driver",), _BUS),
        EventKindRow(_K.DRIVER_BOUND, "A kernel driver was bound to the GPU", "", ("driver", "before"), _BUS),
        EventKindRow(_K.DRIVER_UNBOUND, "The kernel driver was unbound from the GPU", "", ("before",), _BUS),
        EventKindRow(_K.MIG_CHANGED, "MIG was enabled, disabled or repartitioned", "", ("from", "to"),
                     f"{_READINGS}, {_NVML}"),
        EventKindRow(_K.THROTTLE_STARTED, "The clocks are throttled", "", ("cause",), _READINGS),
        EventKindRow(_K.THROTTLE_ENDED, "The clocks are no longer throttled", "", ("cause", "seconds"), _READINGS),
        EventKindRow(_K.ECC_UNCORRECTED, "Uncorrectable memory errors", "number of new errors", (), _READINGS),
        EventKindRow(_K.ECC_STORM, "Corrected memory errors occur at a high rate", "", ("sources", *_PARTS), _NVML),
        EventKindRow(_K.MEMORY_RETIRED, "The driver retired a piece of memory", "", ("sources", *_PARTS), _NVML),
        EventKindRow(_K.MEMORY_NOT_RETIRED, "The driver could not retire a piece of memory", "",
                ("sources", *_PARTS), _NVML),
        EventKindRow(_K.POISON, "A memory error reached an application and was contained", "", ("sources", *_PARTS),
                _NVML),
        EventKindRow(_K.FATAL_POISON, "A memory error spread beyond an application", "", ("sources", *_PARTS), _NVML),
        EventKindRow(_K.ROW_REMAP_PENDING, "A memory row will be remapped at the next reset", "", (), _READINGS),
        EventKindRow(_K.ROW_REMAP_FAILED, "A memory row could not be remapped", "", (), _READINGS),
        EventKindRow(_K.RECOVERY_ACTION_CHANGED, "The driver's recommended recovery action changed", "",
                ("from", "to"), _READINGS),
        EventKindRow(_K.DEVICES_RELEASED, "An operator made the agent release the devices", "", ("until",), "agent"),
        EventKindRow(_K.DEVICES_RESUMED, "The agent reads the devices again", "", ("why",), "agent"),
    )
}  # fmt: skip
"""Every kind, in the order of the documentation."""
