"""Series of a dialect as samples. Pure.

What a series means, apart from its value. Pure.

Labels that nobody here reads. An exporter that calls a label otherwise takes with it what that label said. Pure.

Which pod a series says that its device is held by. Pure.

dcgm-exporter writes the workload's `pod`, `namespace` and `container` into the series of a GPU that is held. A
Prometheus that finds its targets in Kubernetes gives every series of a target the same labels, of the exporter's own
pod; unless it is told `honor_labels: true`, what the exporter wrote is then called `exported_pod`, and a series of a
GPU that nobody holds has the exporter's pod alone (seen with Prometheus 2.42).
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.dialects.dialect import Dialect, FamilyMapping, LabelReader, SeriesSubject
from gpufleet.dialects.sample_builder import SERIES_ENDED, SampleBuilder, bounded, view_key
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, Subject
from gpufleet.model.holdings import Holder, HolderKind
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.text import clean
from gpufleet.model.time import NANOS
from gpufleet.model.view import View, ViewKind


class SeriesMeaning(NamedTuple):
    """What a series means in a dialect, whatever its value: found out once, as a source sends it again and again.

    Attributes:
        dialect: in which it means this.
        subject: what it is about, or None where it tells nothing.
        key: of the view in a `Gathering`.
        family, metric, labels: where it is a family of the table.
        special: where its labels say what its value means.
        why: why it is left alone.
        is_known: whether the dialect has a row for it.
    """

    dialect: Dialect
    subject: SeriesSubject | None = None
    key: str = ""
    family: FamilyMapping | None = None
    metric: Metric | None = None
    labels: tuple[str, ...] = ()
    special: LabelReader | None = None
    why: str | None = None
    is_known: bool = True


def meaning_of(dialect: Dialect, series: ImportedSeries) -> SeriesMeaning:
    """Look a series up in a dialect's tables."""
    family, special = dialect.families.get(series.name), dialect.special.get(series.name)
    why = dialect.why_unread(series.name)
    if why is not None or (family is None and special is None):
        return SeriesMeaning(dialect, why=why, is_known=why is not None or series.name == dialect.measured)
    subject = dialect.identify(series)
    if subject is None:
        return SeriesMeaning(dialect)
    labels: tuple[str, ...] = ()
    if family is not None:
        labels = family.labels or tuple(series.labels.get(label, "") for label in family.dims)
    return SeriesMeaning(
        dialect,
        subject,
        view_key(subject.view),
        family,
        None if family is None else CATALOGUE[family.metric],
        labels,
        special,
    )


TARGET_LABELS = frozenset(
    {
        *("job", "instance", "node", "cluster", "namespace", "pod", "pod_uid", "container", "service", "endpoint"),
        *("prometheus", "prometheus_replica"),
    }
)
"""What a Prometheus, or its operator, says of the target; of the exporter's own it puts `exported_` before these."""


def unknown_labels(dialect: Dialect, series: ImportedSeries) -> Iterator[str]:
    """Yield the labels of a series of one of the dialect's families that neither its table nor a target has."""
    family = dialect.families.get(series.name)
    if family is None or family.unread or dialect.labels is None:
        return
    for label in series.labels:
        known = label in dialect.labels or label in family.dims or label.startswith(dialect.prefixes)
        if not known and label.removeprefix("exported_") not in TARGET_LABELS:
            yield label


_SENTINELS = (0x7FFF_FFF0, 140_737_488_355_328, 0x7FFF_FFFF_FFFF_FFF0)
"""DCGM's blanks of three widths, each and the three after it, the least first; old exporters let them through."""

_BLANK = (Reason.NO_DATA, Reason.NO_DATA, Reason.NOT_SUPPORTED, Reason.NOT_PERMITTED)

_MAX_SECONDS = 2**33
"""Seconds since 1970 beyond any clock that is right."""


class SeriesReadings(msgspec.Struct):
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


def read_series(
    dialect: Dialect,
    series: Sequence[ImportedSeries],
    values: Sequence[float],
    times: Mapping[int, int],
    at: int,
    *,
    reader: str,
    ended: Container[int] = frozenset(),
) -> SeriesReadings:
    """Return the samples that series say.

    Args:
        dialect: of the series; others' families are unknown.
        series, values: as a page has them.
        times: sample to its own instant, where it has one.
        at: nanoseconds since 1970 for all others.
        reader: name of the reader in the samples.
        ended: samples that are no values: their source says that the series has ended then.
    """
    found = SeriesReadings({}, {}, {})
    machines: dict[str, SampleBuilder] = {}
    measured = _measured(dialect, series, values, at)
    for number, (one, value) in enumerate(zip(series, values, strict=True)):
        meant = one.meaning
        if not isinstance(meant, SeriesMeaning) or meant.dialect is not dialect:
            meant = one.meaning = meaning_of(dialect, one)
            found.labels.update(unknown_labels(dialect, one))
        subject = meant.subject
        if subject is None:
            _count_unread(found, dialect, one.name, meant)
            continue
        gathering = machines.get(subject.machine)
        if gathering is None:
            gathering = machines[subject.machine] = SampleBuilder()
        if subject.guest:
            found.guests.add(subject.machine)
        own = times.get(number)
        has_ended = number in ended
        if meant.family is not None and meant.metric is not None:
            told = SERIES_ENDED if has_ended else convert(meant.family, meant.metric, value)
            instant = own or _instant(measured, subject, meant.metric.lane, at)
            gathering.add_keyed(meant.key, subject.view, meant.metric, told, instant, meant.labels)
        for name, labels, said in meant.special(one, value) if meant.special is not None else ():
            metric = CATALOGUE[name]
            view = None if metric.subjects == (Subject.MACHINE,) else subject.view
            told = SERIES_ENDED if has_ended else said
            gathering.add(view, name, told, own or _instant(measured, subject, metric.lane, at), labels)
        if has_ended:
            continue
        if subject.name and subject.view is not None and subject.view.kind is not ViewKind.VGPU:
            instant = own or _instant(measured, subject, Lane.STATIC, at)
            gathering.add_text_keyed(meant.key, subject.view, "gpu_name", subject.name, instant)
    found.machines = {name: gathering.samples(reader) for name, gathering in machines.items()}
    return found


def _count_unread(found: SeriesReadings, dialect: Dialect, name: str, meant: SeriesMeaning) -> None:
    """Account for a series that tells nothing."""
    if meant.why is not None:
        found.unread[name] = meant.why
    elif not meant.is_known:
        found.unknown[name] = None
    elif name != dialect.measured:
        found.nameless += 1


def _instant(measured: Mapping[tuple[str, View | None, Lane], int], subject: SeriesSubject, lane: Lane, at: int) -> int:
    return measured.get((subject.machine, subject.view, lane), at) if measured else at


def convert(family: FamilyMapping, metric: Metric, value: float) -> Value | Absent:
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
    dialect: Dialect, series: Sequence[ImportedSeries], values: Sequence[float], at: int
) -> dict[tuple[str, View | None, Lane], int]:
    """Return when the readings of each lane of each subject were measured, as far as the page itself tells it.

    Where several readers tell of one subject the page does not say which value is subject: the oldest counts. What lies
    after the page itself came is the other machine's clock, and not believed.
    """
    found: dict[tuple[str, View | None, Lane], int] = {}
    if not dialect.measured:
        return found
    for one, value in zip(series, values, strict=True):
        if one.name != dialect.measured or one.labels.get("lane") not in set(Lane) or not 0 < value < _MAX_SECONDS:
            continue
        subject = dialect.identify(one)
        if subject is not None:
            key = (subject.machine, subject.view, Lane(one.labels["lane"]))
            found[key] = min(found.get(key, at), round(value * NANOS), at)
    return found


MAX_NAME = 253
"""Of a name in Kubernetes."""

_PLAIN, _EXPORTED = "", "exported_"


def pod_of(labels: Mapping[str, str], *, plain: bool) -> Holder | None:
    """Return the pod that holds the device, or None where the labels do not name one.

    Args:
        labels: of a series.
        plain: whether `pod` and `namespace` are the workload's, too; else they may be the exporter's own.
    """
    for prefix in (_EXPORTED, _PLAIN) if plain else (_EXPORTED,):
        name, namespace = labels.get(f"{prefix}pod", ""), labels.get(f"{prefix}namespace", "")
        if _is_name(name) and _is_name(namespace):
            uid = labels.get(f"{prefix}pod_uid", "")
            identity = uid if _is_name(uid) else f"{namespace}/{name}"
            return Holder(kind=HolderKind.POD, id=identity[:MAX_NAME], name=name, namespace=namespace)
    return None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME and text == clean(text)
