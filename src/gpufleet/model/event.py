"""Something happened to a device or machine at an instant."""

from typing import Annotated

import msgspec

from gpufleet.model.view import View


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event.

    Attributes:
        view: the device, or None for the machine.
        kind: what happened, such as `xid`, `reset`, `bound`, `unbound`, `hang_started`.
        code: the number that goes with it (an XID), or 0.
        at: nanoseconds since 1970 UTC.
        attributes: short texts that say more.
    """

    view: View | None
    kind: str
    code: int = 0
    at: int
    attributes: Annotated[dict[str, str], msgspec.Meta(max_length=64)] = {}
