"""Changes of a machine's performance probe over time."""

import datetime as dt

import msgspec

from gpufleet.model.reading import Value


class ProbeChange(msgspec.Struct, frozen=True, kw_only=True):
    """Row of `GET /v1/machines/{id}/probe/changes`.

    Attributes:
        at: when the probe measured the new value first, by the machine's agent.
        metric: name in the catalogue.
        before: earlier value; None if it was absent.
        value: new value; None if it is absent.
    """

    at: dt.datetime
    metric: str
    before: Value | None
    value: Value | None


class ProbeChangePage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/machines/{id}/probe/changes`, newest first.

    Attributes:
        machine: the hub's id.
        node: name of the machine.
        items: changed texts and counts. Durations are series.
        next: cursor of the next page, or None.
    """

    machine: str
    node: str
    items: tuple[ProbeChange, ...]
    next: str | None
