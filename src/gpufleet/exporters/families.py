"""Readings under the names of another project: the part shared by all dialects.

Names and units come from `dialects/`.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from gpufleet.dialects.dialect import Dialect, FamilyMapping
from gpufleet.exporters.exposition import MetricsPage, format_labels, format_number
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.view import ViewKind

SUBJECTS = {ViewKind.GPU: Subject.GPU, ViewKind.MIG: Subject.MIG, ViewKind.VGPU: Subject.VGPU}


class LabelledSubject(msgspec.Struct, frozen=True, kw_only=True):
    """A device or machine with the labels of another project.

    Attributes:
        subject: kind of the subject.
        readings, dimensions: as in the snapshot.
        labels: identifying labels, in the other project's order.
    """

    subject: Subject
    readings: Mapping[str, Reading]
    dimensions: Sequence[DimReading] = ()
    labels: Mapping[str, str]


def format_value(family: FamilyMapping, value: Value) -> str | None:
    """Convert a value to the other project's unit and format; None if the project has no number for it."""
    if isinstance(value, str):
        return str(family.states.index(value)) if value in family.states else None
    if family.times == family.over:
        return format_number(value)
    theirs = value * family.over / family.times
    return format_number(int(theirs) if theirs.is_integer() else theirs)


def without_duplicates(shown: Iterable[LabelledSubject]) -> Iterator[LabelledSubject]:
    """Drop subjects with the labels of an earlier one: receivers reject a page with duplicate series."""
    seen: set[tuple[str, ...]] = set()
    for one in shown:
        labels = tuple(one.labels.values())
        if labels not in seen:
            seen.add(labels)
            yield one


def add_families(
    page: MetricsPage,
    dialect: Dialect,
    shown: Sequence[LabelledSubject],
    *,
    write: Callable[[FamilyMapping, Value], str | None] = format_value,
    label: Callable[[FamilyMapping, LabelledSubject, Value], Mapping[str, str]] = lambda _, one, __: one.labels,
) -> None:
    """Add the families of a dialect to a page. A reading without a value has no series.

    Args:
        page: the page.
        dialect: the names and units.
        shown: devices and machines to write.
        write: formats a value; None omits the series.
        label: returns the labels of a series in order; dimension labels follow them.
    """
    for family in dialect.families.values():
        if not family.written:
            continue
        page.declare(family.name, "counter" if family.counter else "gauge", CATALOGUE[family.metric].help)
        for one in shown:
            if one.subject not in family.subjects:
                continue
            for labels, value, at in _values(family, one):
                reading_text = write(family, value)
                if reading_text is not None:
                    page.add_text(family.name, format_labels({**label(family, one, value), **labels}), reading_text, at)


def _values(family: FamilyMapping, one: LabelledSubject) -> Iterator[tuple[dict[str, str], Value, dt.datetime | None]]:
    """Yield the values of a subject in a family: dimension labels, value and instant of measurement."""
    dims = CATALOGUE[family.metric].dims
    if not dims:
        reading = one.readings.get(family.metric)
        if reading is not None and reading.value is not None:
            yield {}, reading.value, reading.measured_at
        return
    for dim in one.dimensions:
        if dim.metric != family.metric or dim.value is None:
            continue
        labels = tuple(dim.labels[name] for name in dims)
        if family.labels in ((), labels):
            yield dict(zip(family.dims, labels, strict=False)), dim.value, dim.measured_at


def devices_with_gpus(snapshot: Snapshot) -> Iterator[tuple[Device, Device]]:
    """Yield each device with its GPU (itself, or its parent). Devices without a GPU in the snapshot are omitted."""
    gpus = {device.key: device for device in snapshot.devices if device.kind is ViewKind.GPU}
    for device in snapshot.devices:
        gpu = device if device.kind is ViewKind.GPU else gpus.get(device.parent or "")
        if gpu is not None:
            yield device, gpu


def reading_text(readings: Mapping[str, Reading], name: str) -> str:
    """Return a reading as a label value, empty if it has no value."""
    reading = readings.get(name)
    return "" if reading is None or reading.value is None else str(reading.value)
