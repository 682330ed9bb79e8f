"""Newest readings of all devices and machines of a cluster, in columns, and changes of a machine's readings."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpufleet.model.reading import Value

Column = Any
"""One-dimensional numpy array with a cell per row."""


def labelled(metric: str, *labels: str) -> str:
    """Return the name of a value of a metric with dimensions, such as `host_service_state{nvidia-fabricmanager}`.

    Args:
        metric: name in the catalogue.
        labels: values of its dimensions, in their order.
    """
    return f"{metric}{{{','.join(labels)}}}"


def split_labelled(name: str) -> tuple[str, tuple[str, ...]]:
    """Return metric and labels of a name that `labelled` gave; a name without dimensions has no labels."""
    metric, _, labels = name.partition("{")
    return metric, tuple(labels.removesuffix("}").split(",")) if labels else ()


class NewestColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Newest samples of the machines of a cluster: a row per machine, view, reader and lane.

    Only rows of machines themselves and of GPUs (`gpu/...`): no MIG devices and vGPU instances.

    Attributes:
        machines: machine ids.
        machine: position of each row's machine in `machines` (int).
        views: view keys, one for each view of each machine, so that its position identifies the device; an empty text
            is the machine itself.
        view: position of each row's view in `views` (int).
        readers, reader: names of readers, and the position of each row's reader.
        lanes, lane: names of lanes, and the position of each row's lane.
        imported: whether the provenance of the row is `imported` (bool).
        measured_at, received_at: nanoseconds since 1970 (int64).
        driver_session: see `Sample` (uint64).
        interval_seconds: declared interval of each row's reader and lane on its machine, NaN if none was declared
            (float64); None if the intervals are not known at all.
        values: metric to numbers (float64), states as their position in the catalogue row; NaN for no value. Only the
            requested metrics that any row has. A value with dimensions has the name that `labelled` gives.
        absence_set: id of the requested absences of each row (int); it has a meaning in this record only.
        absences: that id to metric to reason. The absence of a metric with dimensions is that of all its values.
        info_set: id of the requested texts of each row (int); it has a meaning in this record only.
        texts: that id to metric to text.
        addresses: PCI addresses.
        address: position of each row's PCI address in `addresses`, -1 if its view has none (int); None if the addresses
            are not known at all.
        mig_layouts: (machine id, view key) of a GPU to the sorted profiles of its present MIG devices, such as
            `1g.10gb, 1g.10gb, 3g.40gb`. A GPU without MIG devices has none. None if the profiles are not known at all.
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
    interval_seconds: Column | None = None
    addresses: Sequence[str] = ()
    address: Column | None = None
    mig_layouts: Mapping[tuple[str, str], str] | None = None

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


class ReadingChangeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for changed texts and counts of a machine itself, newest first.

    Attributes:
        cluster, machine: the hub's ids.
        reader: name of the reader.
        start, end: nanoseconds since 1970, `end` excluded.
        before: only changes that follow this (time, metric) in the answer's order.
        limit: maximum number of changes.
    """

    cluster: str
    machine: str
    reader: str
    start: int
    end: int
    before: tuple[int, str] | None = None
    limit: int


class StoredReadingChange(msgspec.Struct, frozen=True, kw_only=True):
    """Changed text or count.

    Attributes:
        at: time of measurement of the first sample with the new value, nanoseconds since 1970.
        metric: name in the catalogue.
        before, value: earlier and new value; None if absent.
    """

    at: int
    metric: str
    before: Value | None
    value: Value | None


class StoredText(msgspec.Struct, frozen=True, kw_only=True):
    """Text of an info metric of a view, from a time of measurement on.

    Attributes:
        machine, view, reader: the hub's id of the machine, key of the view, and name of the reader.
        at: nanoseconds since 1970.
        text: the text.
    """

    machine: str
    view: str
    reader: str
    at: int
    text: str
