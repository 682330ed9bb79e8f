"""Something happened to a device or machine at an instant.

What events there are: one table of kinds. Who makes, stores, shows or documents an event reads it here.
"""

import datetime as dt
import enum
from typing import Annotated, NamedTuple

import msgspec

from gpufleet.model.time import to_datetime
from gpufleet.model.view import View

RECENT_EVENTS = 200
"""Number of newest events that an agent keeps in memory for snapshots and pages."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event.

    Attributes:
        view: the device, or None for the machine.
        kind: what happened, of `event_kinds`; a newer sender may know more.
        code: the number that goes with it (an XID), or 0.
        at: nanoseconds since 1970 UTC.
        attributes: short texts that say more.
    """

    view: View | None
    kind: str
    code: int = 0
    at: int
    attributes: Annotated[dict[str, str], msgspec.Meta(max_length=64)] = {}


class EventReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as documents show it.

    Attributes:
        at: when it happened.
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
    """Return the event as documents show it."""
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
    """What happened. Stores and hubs take other kinds too: a sender may be newer."""

    # what the driver says of a device
    XID = "xid"
    SXID = "sxid"
    GPU_LOST = "gpu_lost"
    GPU_UNAVAILABLE = "gpu_unavailable"
    GPU_RESET_REQUIRED = "gpu_reset_required"
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
    # what readings tell
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


class KindRow(NamedTuple):
    """One row of the table.

    Attributes:
        kind: the name.
        help: one line for people.
        code: what the number means, or empty where it is 0.
        attributes: which texts come with it.
        told_by: who tells it.
    """

    kind: EventKind
    help: str
    code: str
    attributes: tuple[str, ...]
    told_by: str


_K = EventKind
_PARTS = ("gpu_instance", "compute_instance")
_LOG, _NVML, _READINGS, _BUS = "kernel log", "NVML", "change of readings", "change of the PCI bus"

KINDS: dict[str, KindRow] = {
    row.kind: row
    for row in (
        KindRow(_K.XID, "The driver reported an error of the GPU", "the XID",
                ("name", "class", "action", "sources", "count", "message", "pid", "process", "gpu_instance",
                 "compute_instance", "recovery"), f"{_LOG}, {_NVML}, DCGM"),
        KindRow(_K.SXID, "The driver reported an error of an NVSwitch", "the SXID",
                ("pci_address", "switch", "severity", "link", "message"), _LOG),
        KindRow(_K.GPU_LOST, "The GPU does not answer on the bus any more", "", ("call", "message"),
                f"{_NVML}, {_LOG}"),
        KindRow(_K.GPU_UNAVAILABLE, "The driver takes the GPU for unusable", "", ("sources", *_PARTS), _NVML),
        KindRow(_K.GPU_RESET_REQUIRED, "The GPU answers nothing until it is reset", "", ("call",), _NVML),
        KindRow(_K.GPU_RECOVERED, "A GPU that was lost or needed a reset answers again", "", (), _NVML),
        KindRow(_K.GPU_INIT_FAILED, "The driver could not start the GPU", "", ("message",), _LOG),
        KindRow(_K.GPU_RESET, "The GPU was reset while the driver stayed loaded", "", ("evidence",), _READINGS),
        KindRow(_K.VGPU_FAILED, "The vGPU manager reported a failure of an instance", "", ("instance", "message"),
                _LOG),
        KindRow(_K.HANG_STARTED, "The driver does not come back from a call about the GPU", "", ("call",), _NVML),
        KindRow(_K.HANG_ENDED, "The driver came back", "", ("call",), _NVML),
        KindRow(_K.DRIVER_LOADED, "The kernel loaded the driver", "", ("version",), _LOG),
        KindRow(_K.DRIVER_RELOADED, "The driver was loaded anew: its counters begin again", "", ("version",),
                _READINGS),
        KindRow(_K.DRIVER_UPGRADED, "The driver is of another version than before", "", ("from", "to"), _READINGS),
        KindRow(_K.DRIVER_MISMATCH, "Library and kernel driver are of different versions", "", ("message",),
                f"{_LOG}, {_READINGS}"),
        KindRow(_K.DRIVER_FAILED, "The driver stopped working for this agent", "", ("state", "before"), _READINGS),
        KindRow(_K.DRIVER_WORKS, "The driver works again", "", ("before",), _READINGS),
        KindRow(_K.GPU_ADDED, "The bus shows a GPU that it did not show before", "", ("driver",), _BUS),
        KindRow(_K.GPU_REMOVED, "The bus does not show the GPU any more", "", ("driver",), _BUS),
        KindRow(_K.DRIVER_BOUND, "A kernel driver took the GPU", "", ("driver", "before"), _BUS),
        KindRow(_K.DRIVER_UNBOUND, "No kernel driver has the GPU any more", "", ("before",), _BUS),
        KindRow(_K.MIG_CHANGED, "MIG was turned on or off, or cut anew", "", ("from", "to"), f"{_READINGS}, {_NVML}"),
        KindRow(_K.THROTTLE_STARTED, "The clocks are held down", "", ("cause",), _READINGS),
        KindRow(_K.THROTTLE_ENDED, "The clocks are free again", "", ("cause", "seconds"), _READINGS),
        KindRow(_K.ECC_UNCORRECTED, "Memory errors that could not be corrected", "how many more", (), _READINGS),
        KindRow(_K.ECC_STORM, "Corrected memory errors come in masses", "", ("sources", *_PARTS), _NVML),
        KindRow(_K.MEMORY_RETIRED, "The driver takes a piece of memory out of use", "", ("sources", *_PARTS), _NVML),
        KindRow(_K.MEMORY_NOT_RETIRED, "The driver could not take a piece of memory out of use", "",
                ("sources", *_PARTS), _NVML),
        KindRow(_K.POISON, "A memory error reached an application, and was contained", "", ("sources", *_PARTS),
                _NVML),
        KindRow(_K.FATAL_POISON, "A memory error spread beyond an application", "", ("sources", *_PARTS), _NVML),
        KindRow(_K.ROW_REMAP_PENDING, "A memory row will be remapped at the next reset", "", (), _READINGS),
        KindRow(_K.ROW_REMAP_FAILED, "A memory row could not be remapped", "", (), _READINGS),
        KindRow(_K.RECOVERY_ACTION_CHANGED, "The driver asks for another action to recover the GPU", "",
                ("from", "to"), _READINGS),
        KindRow(_K.DEVICES_RELEASED, "An operator made the agent let go of the devices", "", ("until",), "agent"),
        KindRow(_K.DEVICES_RESUMED, "The agent reads the devices again", "", ("why",), "agent"),
    )
}  # fmt: skip
"""Every kind, in the order of the documentation."""
