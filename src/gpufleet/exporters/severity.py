"""Severity and one-line message of an event, for log systems."""

from gpufleet.model.event import EVENT_KINDS, Event, EventKind
from gpufleet.model.xid import XidClass

INFO, WARN, ERROR = 9, 13, 17
"""Values of OTLP's SeverityNumber."""

_K = EventKind
_ERRORS = frozenset(
    {_K.SXID, _K.GPU_LOST, _K.GPU_RESET_REQUIRED, _K.GPU_INIT_FAILED, _K.VGPU_FAILED, _K.HANG_STARTED}
    | {_K.DRIVER_MISMATCH, _K.DRIVER_FAILED, _K.ECC_UNCORRECTED, _K.ROW_REMAP_FAILED}
)
_WARNINGS = frozenset({_K.GPU_REMOVED, _K.THROTTLE_STARTED, _K.ROW_REMAP_PENDING, _K.RECOVERY_ACTION_CHANGED})
_MILD = {XidClass.APPLICATION: WARN, XidClass.NOTICE: INFO}


def severity(event: Event) -> tuple[int, str]:
    """Return the OTLP severity number and a message.

    An XID is an error, unless its class is in `_MILD`.
    """
    row = EVENT_KINDS.get(event.kind)
    message = row.help if row is not None else event.kind
    if event.kind == _K.XID:
        name = event.attributes.get("name", "")
        message = f"XID {event.code}: {name}" if name else f"XID {event.code}"
        return next((level for cls, level in _MILD.items() if event.attributes.get("class") == cls), ERROR), message
    level = ERROR if event.kind in _ERRORS else WARN if event.kind in _WARNINGS else INFO
    return level, message
