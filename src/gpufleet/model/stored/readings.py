"""Newest readings of all devices and machines of a cluster, in columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Column = Any
"""One-dimensional numpy array with a cell per row."""


class NewestColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Newest samples of the machines of a cluster: a row per machine, view, reader and lane.

    Only rows of machines themselves and of GPUs (`gpu/...`): no MIG devices and vGPU instances.

    Attributes:
        machines: machine ids.
        machine: position of each row's machine in `machines` (int).
        views: view keys, unique per machine; an empty text is the machine itself.
        view: position of each row's view in `views` (int).
        readers, reader: names of readers, and the position of each row's reader.
        lanes, lane: names of lanes, and the position of each row's lane.
        imported: whether the provenance of the row is `imported` (bool).
        measured_at, received_at: nanoseconds since 1970 (int64).
        driver_session: see `Sample` (uint64).
        values: metric to numbers (float64), states as their position in the catalogue row; NaN for no value. Only the
            requested metrics that any row has.
        absence_set: id of the absences of each row (uint64).
        absences: id to metric to reason, of the requested metrics.
        info_set: id of the texts of each row (uint64).
        texts: id to metric to text, of the requested text metrics.
    """

    machines: Sequence[str]
    machine: Column
    views: Sequence[str]
    view: Column
    readers: Sequence[str]
    reader: Column
    lanes: Sequence[str]
    lane: Column
    imported: Column
    measured_at: Column
    received_at: Column
    driver_session: Column
    values: Mapping[str, Column]
    absence_set: Column
    absences: Mapping[int, Mapping[str, str]]
    info_set: Column
    texts: Mapping[int, Mapping[str, str]]

    def __len__(self) -> int:
        return len(self.machine)


class ViewColumns(msgspec.Struct, frozen=True, kw_only=True):
    """GPU UUIDs as machines of all clusters report them, a row per machine and GPU with a UUID.

    Attributes:
        cluster, machine, view: ids and view key of each row.
        received_at: receipt of the newest sample of the GPU by the machine, nanoseconds since 1970.
    """

    cluster: Sequence[str]
    machine: Sequence[str]
    view: Sequence[str]
    received_at: Sequence[int]


class EventCount(msgspec.Struct, frozen=True):
    """Events of one kind and code of a view, within the queried interval.

    Attributes:
        machine, view: the subject; an empty view is the machine itself.
        kind, code: as in `Event`.
        at: times, nanoseconds since 1970, ascending; at most 64 of the newest.
        count: number of events.
    """

    machine: str
    view: str
    kind: str
    code: int
    at: tuple[int, ...]
    count: int
