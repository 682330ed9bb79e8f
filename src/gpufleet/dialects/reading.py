"""Import of series of a dialect as samples: meaning, values, unknown labels, and the holding pod. Pure.

Unknown labels are reported because an exporter that renames a label hides its information.

dcgm-exporter adds the workload's `pod`, `namespace` and `container` to the series of a held GPU. A Prometheus with
Kubernetes discovery adds the same labels for the exporter's own pod. Unless `honor_labels: true` is set, the
exporter's labels are then renamed to `exported_pod` and so on, and a series of a free GPU has only the exporter's pod
(seen with Prometheus 2.42).
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.dialects.dialect import Dialect, FamilyMapping, LabelReader, SeriesSubject
from gpufleet.dialects.lane_times import LaneTimes
from gpufleet.dialects.sample_builder import SERIES_ENDED, SampleBuilder, bounded, view_key
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, Subject
from gpufleet.model.holdings import Holder, HolderKind
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.text import clean
from gpufleet.model.view import ViewKind


class SeriesMeaning(NamedTuple):
    """Meaning of a series in a dialect, independent of its value; cached, because sources repeat series.

    Attributes:
        dialect: dialect of the meaning.
        subject: subject, or None if the series is not imported.
        key: key of the view in a `SampleBuilder`.
        family, metric, labels: mapping, if it is a family of the table.
        special: reader, if its labels define the meaning of its value.
        why: reason for not importing it.
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
    """Return the meaning of a series from the tables of a dialect."""
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
"""Target labels of Prometheus and its operator; the exporter's own labels of these names get the prefix `exported_`."""


def unknown_labels(dialect: Dialect, series: ImportedSeries) -> Iterator[str]:
    """Yield labels of an imported series that are neither in the dialect's tables nor target labels."""
    family = dialect.families.get(series.name)
    if family is None or family.unread or dialect.labels is None:
        return
    for label in series.labels:
        known = label in dialect.labels or label in family.dims or label.startswith(dialect.prefixes)
        if not known and label.removeprefix("exported_") not in TARGET_LABELS:
            yield label


_SENTINELS = (0x7FFF_FFF0, 140_737_488_355_328, 0x7FFF_FFFF_FFFF_FFF0)
"""First of the four blank values of DCGM in each of three widths, ascending; old exporters pass them on."""

_BLANK = (Reason.NO_DATA, Reason.NO_DATA, Reason.NOT_SUPPORTED, Reason.NOT_PERMITTED)


class SeriesReadings(msgspec.Struct):
    """Result of importing series.

    Attributes:
        machines: machine name to samples.
        guests: the same of virtual machines on the exporter's machine; a machine can have the name of one of them.
        unread: family to the reason for not importing it.
        unknown: families without a row in the dialect.
        unattributed: number of series whose labels do not identify a subject.
        labels: unknown label to the number of new series with it.
    """

    machines: dict[str, list[Sample]]
    unread: dict[str, str]
    unknown: dict[str, None]
    unattributed: int = 0
    guests: dict[str, list[Sample]] = {}
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
    """Return the samples of series.

    Args:
        dialect: dialect of the series; families of other dialects are unknown.
        series, values: columns of a page.
        times: sample index to its own timestamp.
        at: timestamp of other samples, nanoseconds since 1970; 0 if all samples have their own.
        reader: name of the reader in the samples.
        ended: indices of samples that mark the end of a series.
    """
    found = SeriesReadings({}, {}, {})
    machines: dict[str, SampleBuilder] = {}
    guests: dict[str, SampleBuilder] = {}
    measured = LaneTimes(dialect, series, values, times, at)
    for number, (item, value) in enumerate(zip(series, values, strict=True)):
        meaning = item.meaning
        if not isinstance(meaning, SeriesMeaning) or meaning.dialect is not dialect:
            meaning = item.meaning = meaning_of(dialect, item)
            found.labels.update(unknown_labels(dialect, item))
        subject = meaning.subject
        if subject is None:
            _count_unread(found, dialect, item.name, meaning)
            continue
        builders = guests if subject.guest else machines
        builder = builders.get(subject.machine)
        if builder is None:
            builder = builders[subject.machine] = SampleBuilder(has_times=bool(dialect.measured))
        own = times.get(number, 0)
        has_ended = number in ended
        if meaning.family is not None and meaning.metric is not None:
            reading = SERIES_ENDED if has_ended else convert(meaning.family, meaning.metric, value)
            lane = meaning.metric.lane
            instant = own or measured.date(subject, lane)
            is_evidence = isinstance(reading, Absent) and measured.is_evidence(subject, lane, own)
            builder.add_keyed(
                meaning.key, subject.view, meaning.metric, reading, instant, meaning.labels, is_evidence=is_evidence
            )
        for name, labels, mapped in meaning.special(item, value) if meaning.special is not None else ():
            metric = CATALOGUE[name]
            view = None if metric.subjects == (Subject.MACHINE,) else subject.view
            reading = SERIES_ENDED if has_ended else mapped
            instant = own or measured.date(subject, metric.lane)
            is_evidence = isinstance(reading, Absent) and measured.is_evidence(subject, metric.lane, own)
            builder.add(view, name, reading, instant, labels, is_evidence=is_evidence)
        if has_ended:
            continue
        if subject.view is None:
            continue
        if subject.name and subject.view.kind is not ViewKind.VGPU:
            instant = own or measured.date(subject, Lane.STATIC)
            builder.add_text_keyed(meaning.key, subject.view, "gpu_name", subject.name, instant)
        for text_metric, text in subject.texts:
            if text:
                instant = own or measured.date(subject, CATALOGUE[text_metric].lane)
                builder.add_text_keyed(meaning.key, subject.view, text_metric, text, instant)
    found.machines = {name: builder.samples(reader) for name, builder in machines.items()}
    found.guests = {name: builder.samples(reader) for name, builder in guests.items()}
    return found


def _count_unread(found: SeriesReadings, dialect: Dialect, name: str, meaning: SeriesMeaning) -> None:
    """Count a series that is not imported."""
    if meaning.why is not None:
        found.unread[name] = meaning.why
    elif not meaning.is_known:
        found.unknown[name] = None
    elif name != dialect.measured:
        found.unattributed += 1


def convert(family: FamilyMapping, metric: Metric, value: float) -> Value | Absent:
    """Return a foreign value in the catalogue's unit, or an absence."""
    if value == 0 and family.zero is not None:
        return Absent(family.zero, f"{family.name} is 0 if there is no value")
    if value >= _SENTINELS[0]:
        for sentinel in _SENTINELS:
            if 0 <= value - sentinel < len(_BLANK):
                return Absent(_BLANK[int(value - sentinel)], family.name)
    if family.states:
        known = value in range(len(family.states))
        return family.states[int(value)] if known else Absent(Reason.INVALID_VALUE, family.name)
    ours: float = value * family.times
    return bounded(metric, ours / family.over if family.over != 1 else ours, family.name)


MAX_NAME = 253
"""Maximum length of a Kubernetes name."""

_PLAIN, _EXPORTED = "", "exported_"


def pod_of(labels: Mapping[str, str], *, plain: bool) -> Holder | None:
    """Return the pod that holds the device, or None if the labels have none.

    Args:
        labels: labels of a series.
        plain: whether `pod` and `namespace` are the workload's as well; otherwise they may be the exporter's own.
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
