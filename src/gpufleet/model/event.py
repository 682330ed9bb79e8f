"""Something happened to a device or machine at an instant."""

import datetime as dt
from typing import Annotated

import msgspec

from gpufleet.model.time import to_datetime
from gpufleet.model.view import View


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
