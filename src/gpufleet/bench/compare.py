"""Comparison of captures with a baseline, the first of them. Pure."""

import enum
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.bench.bootstrap import MIN_REPEATS, Interval, median_interval
from gpufleet.bench.document import BenchmarkDocument
from gpufleet.model.errors import GpufleetError
from gpufleet.model.text import bounded
from gpufleet.probe.facts import FACTS
from gpufleet.probe.measurements import describe
from gpufleet.probe.records import Better, MeasuredUnit, Measurement, Statistics

EMULATORS = ("qemu",)
"""Values of `host_virtualization` that mean emulation: QEMU without a hardware accelerator."""

MAX_CAPTURES = 26

MAX_SHOWN = 2000
"""Maximum length of a differing fact's text: a forged capture can have thousands of values."""


class ComparisonError(GpufleetError):
    """Captures cannot be compared."""


class Verdict(enum.StrEnum):
    """Result of one comparison."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no_significant_difference"
    TOO_FEW_REPEATS = "too_few_repeats"
    NOT_COMPARABLE = "not_comparable"
    ABSENT = "absent"


class LoadedCapture(msgspec.Struct, frozen=True):
    """Capture from a file, by the file's name."""

    file: str
    document: BenchmarkDocument


class CaptureSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Capture in a comparison.

    Attributes:
        letter: its short name; A is the baseline.
        file, name, machine, source, labels: of the document.
        started_at: RFC 3339.
        is_emulated: whether the machine is emulated.
    """

    letter: str
    file: str
    name: str
    machine: str
    source: str
    labels: dict[str, str]
    started_at: str
    is_emulated: bool


class ComparedMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """Measurement of one capture against the baseline.

    Attributes:
        name, unit, better: of the measurement.
        letter: the other capture.
        baseline, other: statistics; None without values.
        interval: difference of medians with its confidence interval, in the unit; None without a verdict.
        difference_ratio, low_ratio, high_ratio: the same, relative to the baseline's median; None if that is zero.
        verdict: result.
        detail: reason of a missing verdict.
    """

    name: str
    unit: MeasuredUnit
    better: Better
    letter: str
    baseline: Statistics | None = None
    other: Statistics | None = None
    interval: Interval | None = None
    difference_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    verdict: Verdict = Verdict.ABSENT
    detail: str = ""


class DifferingFact(msgspec.Struct, frozen=True, kw_only=True):
    """Fact, label or target that differs between captures: letter to text. An unknown value is its absence reason."""

    name: str
    help: str
    values: dict[str, str]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Captures, compared measurements, everything else that differs, and remarks."""

    captures: tuple[CaptureSummary, ...]
    measurements: tuple[ComparedMeasurement, ...]
    differences: tuple[DifferingFact, ...]
    notes: tuple[str, ...]


def compare(captures: Sequence[LoadedCapture]) -> Comparison:
    """Compare captures with the first.

    Raises:
        ComparisonError: if there are fewer than two or more than 26, or no measurement is comparable.
    """
    if not 2 <= len(captures) <= MAX_CAPTURES:
        raise ComparisonError(f"{len(captures)} captures: give 2 to {MAX_CAPTURES}")
    lettered = {chr(ord("A") + number): one for number, one in enumerate(captures)}
    base = captures[0].document
    others = list(lettered.items())[1:]
    pairs = [
        (letter, first, _measurement(one.document, first.name))
        for first in base.measurements
        if first.name in _measured(captures)
        for letter, one in others
    ]
    judged = sum(1 for _, first, other in pairs if _obstacle(first, other) is None)
    compared = tuple(_compare(letter, first, other, judged) for letter, first, other in pairs)
    if all(one.verdict in (Verdict.NOT_COMPARABLE, Verdict.ABSENT) for one in compared):
        reasons = Counter(one.detail for one in compared if one.verdict is Verdict.NOT_COMPARABLE)
        raise ComparisonError(f"no measurement is comparable: {next(iter(reasons), 'none is in two captures')}")
    summaries = tuple(_summary(letter, one) for letter, one in lettered.items())
    return Comparison(
        captures=summaries,
        measurements=compared,
        differences=differing_facts({letter: one.document for letter, one in lettered.items()}),
        notes=tuple(_notes(summaries, lettered)),
    )


def differing_facts(documents: dict[str, BenchmarkDocument]) -> tuple[DifferingFact, ...]:
    """Return the compared facts, labels and targets that are not the same in all documents."""
    found: list[DifferingFact] = []
    for name, kind in FACTS.items():
        values = {letter: _fact_text(document, name) for letter, document in documents.items()}
        if kind.compared and len(set(values.values())) > 1:
            found.append(DifferingFact(name=name, help=kind.help, values=_cut(values)))
    for label in sorted({label for document in documents.values() for label in document.labels}):
        values = {letter: document.labels.get(label, "unset") for letter, document in documents.items()}
        if len(set(values.values())) > 1:
            found.append(DifferingFact(name=f"label {label}", help="label of the capture", values=values))
    targets = {letter: _targets(document) for letter, document in documents.items()}
    if len(set(targets.values())) > 1:
        found.append(DifferingFact(name="targets", help="file, device or peer of the workloads", values=_cut(targets)))
    return tuple(found)


def _cut(texts: Mapping[str, str]) -> dict[str, str]:
    return {letter: bounded(text, MAX_SHOWN) for letter, text in texts.items()}


def obstacle_of(first: Measurement, other: Measurement) -> str | None:
    """Return why two measurements of one name cannot be compared, or None."""
    for field, shown in (
        ("unit", "units"),
        ("better", "directions"),
        ("tool", "tools"),
        ("arguments", "arguments"),
        ("tool_version", "tool versions"),
    ):
        if getattr(first, field) != getattr(other, field):
            texts = (_shown(getattr(one, field)) for one in (first, other))
            return f"other {shown}: {' and '.join(texts)}"
    return None


def _obstacle(first: Measurement, other: Measurement | None) -> tuple[Verdict, str] | None:
    """Return the verdict and detail of a pair without an interval, or None."""
    for one in (first, other):
        if one is None:
            return Verdict.ABSENT, "not in this capture"
        if not one.values:
            return Verdict.ABSENT, f"{one.absent or 'no values'}: {one.detail}".rstrip(": ")
    assert other is not None
    if (reason := obstacle_of(first, other)) is not None:
        return Verdict.NOT_COMPARABLE, reason
    fewest = min(len(first.values), len(other.values))
    if fewest < MIN_REPEATS:
        return Verdict.TOO_FEW_REPEATS, f"{fewest} of at least {MIN_REPEATS} repeats"
    return None


def _compare(letter: str, first: Measurement, other: Measurement | None, judged: int) -> ComparedMeasurement:
    common = ComparedMeasurement(
        name=first.name,
        unit=first.unit,
        better=first.better,
        letter=letter,
        baseline=describe(first.values),
        other=None if other is None else describe(other.values),
    )
    if (obstacle := _obstacle(first, other)) is not None:
        return msgspec.structs.replace(common, verdict=obstacle[0], detail=obstacle[1])
    assert other is not None
    assert common.baseline is not None
    interval = median_interval(first.values, other.values, comparisons=judged)
    scale = common.baseline.median
    ratios = [part / scale if scale else math.inf for part in (interval.difference, interval.low, interval.high)]
    known = [ratio if math.isfinite(ratio) else None for ratio in ratios]
    verdict = Verdict.NO_DIFFERENCE
    if interval.is_significant:
        is_better = (interval.difference > 0) == (first.better is Better.HIGHER)
        verdict = Verdict.BETTER if is_better else Verdict.WORSE
    return msgspec.structs.replace(
        common,
        interval=interval,
        difference_ratio=known[0],
        low_ratio=known[1],
        high_ratio=known[2],
        verdict=verdict,
    )


def _measurement(document: BenchmarkDocument, name: str) -> Measurement | None:
    return next((one for one in document.measurements if one.name == name), None)


def _measured(captures: Iterable[LoadedCapture]) -> set[str]:
    """Return the measurements that have values in a capture."""
    return {one.name for capture in captures for one in capture.document.measurements if one.values}


def _summary(letter: str, one: LoadedCapture) -> CaptureSummary:
    document = one.document
    return CaptureSummary(
        letter=letter,
        file=one.file,
        name=document.name,
        machine=document.machine.name,
        source=document.machine.source,
        labels=document.labels,
        started_at=document.started_at.isoformat(timespec="seconds"),
        is_emulated=_fact_text(document, "host_virtualization") in EMULATORS,
    )


def _notes(summaries: tuple[CaptureSummary, ...], captures: dict[str, LoadedCapture]) -> list[str]:
    notes = [
        f"{one.letter} ran on an emulated machine (QEMU without a hardware accelerator)"
        for one in summaries
        if one.is_emulated
    ]
    for letter, one in captures.items():
        failed = sum(measurement.failed for measurement in one.document.measurements if measurement.values)
        if failed:
            notes.append(f"{letter} has {failed} failed repeats, which do not count")
    known = [one.name for one in next(iter(captures.values())).document.measurements]
    extra = {one.name for capture in captures.values() for one in capture.document.measurements} - set(known)
    if extra:
        notes.append(f"not in the baseline A, and not compared: {', '.join(sorted(extra))}")
    missing = [name for name in known if name not in _measured(captures.values())]
    if missing:
        notes.append(f"without values in all captures: {', '.join(missing)}")
    return notes


def _fact_text(document: BenchmarkDocument, name: str) -> str:
    """Return the values of a fact over its subjects, which differ between machines, with their counts."""
    texts = Counter(
        f"unknown ({fact.absent})" if fact.absent else _shown(fact.value)
        for fact in document.facts
        if fact.name == name
    )
    if len(texts) == 1 and texts.total() == 1:
        return next(iter(texts))
    return ", ".join(f"{count} x {text}" for text, count in sorted(texts.items())) or "unknown"


def _targets(document: BenchmarkDocument) -> str:
    return ", ".join(sorted({one.target for one in document.measurements if one.target})) or "none"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"
