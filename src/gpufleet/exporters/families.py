"""Readings under another project's names: the part that all dialects share. Names and units are `dialects/`'."""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from gpufleet.dialects.dialect import Dialect, Family
from gpufleet.exporters.exposition import Page, labelled, number
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.view import ViewKind

SUBJECTS = {ViewKind.GPU: Subject.GPU, ViewKind.MIG: Subject.MIG, ViewKind.VGPU: Subject.VGPU}


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Something that families are told of.

    Attributes:
        subject: what it is.
        readings, dimensions: as the snapshot has them.
        labels: as the other project names it, in its order.
    """

    subject: Subject
    readings: Mapping[str, Reading]
    dimensions: Sequence[DimReading] = ()
    labels: Mapping[str, str]


def plain(family: Family, value: Value) -> str | None:
    """Return a value of ours as they write it, or None where they have no number for it."""
    if isinstance(value, str):
        return str(family.states.index(value)) if value in family.states else None
    if family.times == family.over:
        return number(value)
    theirs = value * family.over / family.times
    return number(int(theirs) if theirs.is_integer() else theirs)


def each_once(shown: Iterable[Shown]) -> Iterator[Shown]:
    """Leave out what is called like another before it: a series that is there twice costs the whole page."""
    seen: set[tuple[str, ...]] = set()
    for one in shown:
        called = tuple(one.labels.values())
        if called not in seen:
            seen.add(called)
            yield one


def add_families(
    page: Page,
    dialect: Dialect,
    shown: Sequence[Shown],
    *,
    write: Callable[[Family, Value], str | None] = plain,
    label: Callable[[Family, Shown, Value], Mapping[str, str]] = lambda _, one, __: one.labels,
) -> None:
    """Add a dialect's families to a page; a reading without a value has no series.

    Args:
        page: the page.
        dialect: whose names.
        shown: what is told of.
        write: makes the number; None leaves the series out.
        label: makes the labels of a series, in their order; those of dimensions come behind them.
    """
    for family in dialect.families.values():
        if not family.written:
            continue
        page.declare(family.name, "counter" if family.counter else "gauge", CATALOGUE[family.metric].help)
        for one in shown:
            if one.subject not in family.subjects:
                continue
            for labels, value, at in _values(family, one):
                text = write(family, value)
                if text is not None:
                    page.add_text(family.name, labelled({**label(family, one, value), **labels}), text, at)


def _values(family: Family, one: Shown) -> Iterator[tuple[dict[str, str], Value, dt.datetime | None]]:
    """Return the values that a family shows of something, with the labels of their dimensions, and their instants."""
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


def parts(snapshot: Snapshot) -> Iterator[tuple[Device, Device]]:
    """Return each device with the GPU that it is, or is cut from; what no GPU here is the parent of is left out."""
    gpus = {device.key: device for device in snapshot.devices if device.kind is ViewKind.GPU}
    for device in snapshot.devices:
        gpu = device if device.kind is ViewKind.GPU else gpus.get(device.parent or "")
        if gpu is not None:
            yield device, gpu


def text(readings: Mapping[str, Reading], name: str) -> str:
    """Return a reading as a label, empty where it has no value."""
    reading = readings.get(name)
    return "" if reading is None or reading.value is None else str(reading.value)
