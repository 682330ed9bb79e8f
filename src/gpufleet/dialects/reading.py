"""Series of a dialect as samples. Pure."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence

import msgspec

from gpufleet.dialects.dialect import Dialect, Family, Whose
from gpufleet.dialects.gathering import ENDED, Gathering, bounded
from gpufleet.dialects.labels import unknown_labels
from gpufleet.dialects.meaning import Meaning, meaning_of
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, Subject
from gpufleet.model.reading import Sample, Value
from gpufleet.model.series import Series
from gpufleet.model.time import NANOS
from gpufleet.model.view import View, ViewKind

_SENTINELS = (0x7FFF_FFF0, 140_737_488_355_328, 0x7FFF_FFFF_FFFF_FFF0)
"""DCGM's blanks of three widths, each and the three after it, the least first; old exporters let them through."""

_BLANK = (Reason.NO_DATA, Reason.NO_DATA, Reason.NOT_SUPPORTED, Reason.NOT_PERMITTED)

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
        labels: those that no table has, to how many series have them that were not seen before.
    """

    machines: dict[str, list[Sample]]
    unread: dict[str, str]
    unknown: dict[str, None]
    nameless: int = 0
    guests: set[str] = msgspec.field(default_factory=set)
    labels: Counter[str] = msgspec.field(default_factory=Counter)


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
        meant = one.meaning
        if not isinstance(meant, Meaning) or meant.dialect is not dialect:
            meant = one.meaning = meaning_of(dialect, one)
            found.labels.update(unknown_labels(dialect, one))
        whose = meant.whose
        if whose is None:
            _leave(found, dialect, one.name, meant)
            continue
        gathering = machines.get(whose.machine)
        if gathering is None:
            gathering = machines[whose.machine] = Gathering()
        if whose.guest:
            found.guests.add(whose.machine)
        own = times.get(number)
        has_ended = number in ended
        if meant.family is not None and meant.metric is not None:
            told = ENDED if has_ended else convert(meant.family, meant.metric, value)
            instant = own or _instant(measured, whose, meant.metric.lane, at)
            gathering.tell_of(meant.key, whose.view, meant.metric, told, instant, meant.labels)
        for name, labels, said in meant.special(one, value) if meant.special is not None else ():
            metric = CATALOGUE[name]
            view = None if metric.subjects == (Subject.MACHINE,) else whose.view
            told = ENDED if has_ended else said
            gathering.tell(view, name, told, own or _instant(measured, whose, metric.lane, at), labels)
        if has_ended:
            continue
        if whose.name and whose.view is not None and whose.view.kind is not ViewKind.VGPU:
            instant = own or _instant(measured, whose, Lane.STATIC, at)
            gathering.text_of(meant.key, whose.view, "gpu_name", whose.name, instant)
    found.machines = {name: gathering.samples(reader) for name, gathering in machines.items()}
    return found


def _leave(found: Read, dialect: Dialect, name: str, meant: Meaning) -> None:
    """Account for a series that tells nothing."""
    if meant.why is not None:
        found.unread[name] = meant.why
    elif not meant.is_known:
        found.unknown[name] = None
    elif name != dialect.measured:
        found.nameless += 1


def _instant(measured: Mapping[tuple[str, View | None, Lane], int], whose: Whose, lane: Lane, at: int) -> int:
    return measured.get((whose.machine, whose.view, lane), at) if measured else at


def convert(family: Family, metric: Metric, value: float) -> Value | Absent:
    """Return their value in the catalogue's unit, or why it is none."""
    if value == 0 and family.zero is not None:
        return Absent(family.zero, f"{family.name} says 0 where there is none")
    if value >= _SENTINELS[0]:
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
