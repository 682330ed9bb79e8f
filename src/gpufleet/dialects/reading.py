"""Series of a dialect as samples. Pure."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.dialects.dialect import Dialect, Family
from gpufleet.dialects.gathering import Gathering, bounded
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Metric
from gpufleet.model.reading import Sample, Value
from gpufleet.model.series import Series
from gpufleet.model.view import ViewKind

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
    machines: dict[str, Gathering] = {}
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
        gathering = machines.setdefault(subject.machine, Gathering())
        if family is not None:
            metric = CATALOGUE[family.metric]
            labels = tuple(one.labels.get(label, "") for label in family.dims)
            gathering.tell(subject.view, metric.name, convert(family, metric, value), instant, labels)
        for name, told in special(one, value) if special is not None else ():
            gathering.tell(subject.view, name, told, instant)
        if subject.name and subject.view is not None and subject.view.kind is not ViewKind.VGPU:
            gathering.text(subject.view, "gpu_name", subject.name, instant)
    found.machines = {name: gathering.samples(reader) for name, gathering in machines.items()}
    return found


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
    return bounded(metric, ours / family.over if family.over != 1 else ours, family.name)
