"""Series of a dialect as samples. Pure."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.dialects.dialect import Dialect, Family, Subject
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, ValueType
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.series import Series
from gpufleet.model.view import View, ViewKind

_SENTINELS = (0x7FFF_FFF0, 0x7FFF_FFFF_FFFF_FFF0, 140_737_488_355_328)
"""DCGM's blanks of three widths, each and the three after it; old exporters let them through as values."""

_BLANK = (Reason.NO_DATA, Reason.NO_DATA, Reason.NOT_SUPPORTED, Reason.NOT_PERMITTED)


class Read(msgspec.Struct):
    """What series came to.

    Attributes:
        machines: name to samples.
        unread: family to why it is left alone.
        unknown: families that the dialect has no row for.
        nameless: series of which the labels do not tell what they are about.
    """

    machines: dict[str, list[Sample]]
    unread: dict[str, str]
    unknown: dict[str, None]
    nameless: int = 0


def read(
    dialect: Dialect,
    series: Sequence[Series],
    values: Sequence[float],
    times: Mapping[int, int],
    at: int,
    *,
    reader: str,
) -> Read:
    """Return the samples that series say.

    Args:
        dialect: of the series; others' families are unknown.
        series, values: as a page has them.
        times: sample to its own instant, where it has one.
        at: nanoseconds since 1970 for all others.
        reader: name of the reader in the samples.
    """
    found = Read({}, {}, {})
    rows: dict[tuple[str, View | None, Lane, int], _Row] = {}
    for number, (one, value) in enumerate(zip(series, values, strict=True)):
        family, special = dialect.families.get(one.name), dialect.special.get(one.name)
        if family is None and special is None:
            if one.name in dialect.unread:
                found.unread[one.name] = dialect.unread[one.name]
            else:
                found.unknown[one.name] = None
            continue
        subject = dialect.subject(one)
        if subject is None:
            found.nameless += 1
            continue
        instant = times.get(number, at)
        if family is not None:
            metric = CATALOGUE[family.metric]
            key = (subject.machine, subject.view, metric.lane, instant)
            rows.setdefault(key, _Row(subject)).add(family, metric, one, value)
        for name, told in special(one, value) if special is not None else ():
            key = (subject.machine, subject.view, CATALOGUE[name].lane, instant)
            rows.setdefault(key, _Row(subject)).tell(name, told)
    for (machine, view, lane, instant), row in rows.items():
        found.machines.setdefault(machine, []).append(row.sample(view, lane, instant, reader))
    for machine, samples in found.machines.items():
        samples += _names(rows, machine, reader)
    return found


class _Row:
    """One sample as it comes together."""

    def __init__(self, subject: Subject) -> None:
        self.name = subject.name
        self._values: dict[str, Value | Absent] = {}
        self._dims: dict[tuple[str, tuple[str, ...]], Value | Absent] = {}

    def add(self, family: Family, metric: Metric, series: Series, value: float) -> None:
        told = convert(family, metric, value)
        if metric.dims:
            labels = tuple(series.labels.get(label, "") for label in family.dims)
            self._dims[metric.name, labels] = _agreed(self._dims.get((metric.name, labels)), told)
        else:
            self._values[metric.name] = _agreed(self._values.get(metric.name), told)

    def tell(self, metric: str, told: Value | Absent) -> None:
        self._values[metric] = _agreed(self._values.get(metric), told)

    def sample(self, view: View | None, lane: Lane, at: int, reader: str) -> Sample:
        return Sample(
            view=view,
            reader=reader,
            lane=lane,
            measured_at=at,
            values=self._values,
            dims=tuple(DimValue(metric, labels, value) for (metric, labels), value in self._dims.items()),
            provenance=Provenance.IMPORTED,
        )


def convert(family: Family, metric: Metric, value: float) -> Value | Absent:
    """Return their value in the catalogue's unit, or why it is none."""
    if not math.isfinite(value):
        return Absent(Reason.INVALID_VALUE, family.name)
    if value == 0 and family.zero is not None:
        return Absent(family.zero, f"{family.name} says 0 where there is none")
    for sentinel in _SENTINELS:
        if 0 <= value - sentinel < len(_BLANK):
            return Absent(_BLANK[int(value - sentinel)], family.name)
    ours: float = value * family.times
    if family.over != 1:
        ours = ours / family.over
    if metric.type is ValueType.INT:
        ours = round(ours)
    if (metric.low is not None and ours < metric.low) or (metric.high is not None and ours > metric.high):
        return Absent(Reason.INVALID_VALUE, family.name)
    return ours


def _agreed(before: Value | Absent | None, told: Value | Absent) -> Value | Absent:
    """Return what several series of one device say: an exporter repeats a GPU for each pod that shares it.

    Where they differ each is one sharer's part, and none of them is the device's.
    """
    if before is None or before == told:
        return told
    return Absent(Reason.INVALID_VALUE, "several series of one device differ")


def _names(rows: Mapping[tuple[str, View | None, Lane, int], _Row], machine: str, reader: str) -> list[Sample]:
    """Return a static sample with the product's name for each device that the labels name."""
    named: dict[View, tuple[str, int]] = {}
    for (of, view, _, at), row in rows.items():
        if of == machine and view is not None and row.name and at >= named.get(view, ("", 0))[1]:
            named[view] = (row.name, at)
    return [
        Sample(
            view=view,
            reader=reader,
            lane=Lane.STATIC,
            measured_at=at,
            values={"gpu_name": name},
            provenance=Provenance.IMPORTED,
        )
        for view, (name, at) in named.items()
        if view.kind is not ViewKind.VGPU
    ]
