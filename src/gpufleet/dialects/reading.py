"""Series of a dialect as samples. Pure."""

from collections.abc import Container, Mapping, Sequence

import msgspec

from gpufleet.dialects.dialect import Dialect, Family, Whose
from gpufleet.dialects.gathering import Gathering, bounded
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, Subject
from gpufleet.model.reading import Sample, Value
from gpufleet.model.series import Series
from gpufleet.model.time import NANOS
from gpufleet.model.view import View, ViewKind

_SENTINELS = (0x7FFF_FFF0, 0x7FFF_FFFF_FFFF_FFF0, 140_737_488_355_328)
"""DCGM's blanks of three widths, each and the three after it; old exporters let them through as values."""

_BLANK = (Reason.NO_DATA, Reason.NO_DATA, Reason.NOT_SUPPORTED, Reason.NOT_PERMITTED)

ENDED = Absent(Reason.NO_DATA, "its source says that the series has ended")

_LAST = 2**33
"""Seconds since 1970 beyond any clock that is right."""


class Read(msgspec.Struct):
    """What series came to.

    Attributes:
        machines: name to samples.
        guests: those of them that are virtual machines which the exporter's own machine tells of.
        unread: family to why it is left alone.
        unknown: families that the dialect has no row for.
        nameless: series of which the labels do not tell what they are about.
    """

    machines: dict[str, list[Sample]]
    unread: dict[str, str]
    unknown: dict[str, None]
    nameless: int = 0
    guests: set[str] = msgspec.field(default_factory=set)


def read(
    dialect: Dialect,
    series: Sequence[Series],
    values: Sequence[float],
    times: Mapping[int, int],
    at: int,
    *,
    reader: str,
    ended: Container[int] = frozenset(),
) -> Read:
    """Return the samples that series say.

    Args:
        dialect: of the series; others' families are unknown.
        series, values: as a page has them.
        times: sample to its own instant, where it has one.
        at: nanoseconds since 1970 for all others.
        reader: name of the reader in the samples.
        ended: samples that are no values: their source says that the series has ended then.
    """
    found = Read({}, {}, {})
    machines: dict[str, Gathering] = {}
    measured = _measured(dialect, series, values, at)
    for number, (one, value) in enumerate(zip(series, values, strict=True)):
        family, special = dialect.families.get(one.name), dialect.special.get(one.name)
        why = dialect.why_unread(one.name)
        if why is not None:
            found.unread[one.name] = why
            continue
        if family is None and special is None:
            if one.name != dialect.measured:
                found.unknown[one.name] = None
            continue
        whose = dialect.whose(one)
        if whose is None:
            found.nameless += 1
            continue
        gathering = machines.setdefault(whose.machine, Gathering())
        if whose.guest:
            found.guests.add(whose.machine)

        def instant(lane: Lane, whose: Whose = whose, number: int = number) -> int:
            return times.get(number) or measured.get((whose.machine, whose.view, lane), at)

        if family is not None:
            metric = CATALOGUE[family.metric]
            labels = family.labels or tuple(one.labels.get(label, "") for label in family.dims)
            read_as = ENDED if number in ended else convert(family, metric, value)
            gathering.tell(whose.view, metric.name, read_as, instant(metric.lane), labels)
        for name, labels, told in special(one, value) if special is not None and number not in ended else ():
            metric = CATALOGUE[name]
            view = None if metric.subjects == (Subject.MACHINE,) else whose.view
            gathering.tell(view, name, told, instant(metric.lane), labels)
        if whose.name and number not in ended and whose.view is not None and whose.view.kind is not ViewKind.VGPU:
            gathering.text(whose.view, "gpu_name", whose.name, instant(Lane.STATIC))
    found.machines = {name: gathering.samples(reader) for name, gathering in machines.items()}
    return found


def convert(family: Family, metric: Metric, value: float) -> Value | Absent:
    """Return their value in the catalogue's unit, or why it is none."""
    if value == 0 and family.zero is not None:
        return Absent(family.zero, f"{family.name} says 0 where there is none")
    for sentinel in _SENTINELS:
        if 0 <= value - sentinel < len(_BLANK):
            return Absent(_BLANK[int(value - sentinel)], family.name)
    if family.states:
        known = value in range(len(family.states))
        return family.states[int(value)] if known else Absent(Reason.INVALID_VALUE, family.name)
    ours: float = value * family.times
    return bounded(metric, ours / family.over if family.over != 1 else ours, family.name)


def _measured(
    dialect: Dialect, series: Sequence[Series], values: Sequence[float], at: int
) -> dict[tuple[str, View | None, Lane], int]:
    """Return when the readings of each lane of each subject were measured, as far as the page itself tells it.

    Where several readers tell of one subject the page does not say which value is whose: the oldest counts. What lies
    after the page itself came is the other machine's clock, and not believed.
    """
    found: dict[tuple[str, View | None, Lane], int] = {}
    if not dialect.measured:
        return found
    for one, value in zip(series, values, strict=True):
        if one.name != dialect.measured or one.labels.get("lane") not in set(Lane) or not 0 < value < _LAST:
            continue
        whose = dialect.whose(one)
        if whose is not None:
            key = (whose.machine, whose.view, Lane(one.labels["lane"]))
            found[key] = min(found.get(key, at), round(value * NANOS), at)
    return found
