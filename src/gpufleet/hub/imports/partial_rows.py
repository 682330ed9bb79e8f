"""The newest rows of what is written in parts.

A writer cuts what one scrape came to into several requests, as it likes: by series, not by target. The store keeps one
row for each subject, reader, lane and instant, the newest. So a part is written together with the parts of the same
instant that came before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from gpufleet.dialects.gathering import agreed
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.time import NANOS

K = TypeVar("K")

INSTANTS_KEPT = 2
"""Newest instants of a subject that are remembered; parts of earlier ones are written as they come."""

CATCH_UP_SECONDS = 30.0
"""Earlier ones are remembered for so long: after an outage the queues of one writer are not equally far."""

INSTANTS_MOST = 256
"""Of a subject, whatever comes."""

EARLIER_MOST = 250_000
"""Earlier ones of all subjects: about 0.8 GB where each has 25 values. Beyond it only the newest are remembered."""

STATIC_SECONDS = 600
"""What never changes is written again only after so long: every scrape repeats it."""

Subject = tuple[Machine, str, str, Lane]
"""Machine, key of the view (empty for the machine itself), reader and lane."""


class Rows:
    """Rows by subject, of the newest instants."""

    def __init__(self, together_ns: int = 0, *, earlier_most: int = EARLIER_MOST) -> None:
        """Prepare it; instants of a subject that are no further apart than `together_ns` are one."""
        self._earlier_most = earlier_most
        self._instants = 0  # of all subjects
        self._kept: dict[Subject, dict[int, Sample]] = {}
        self._written: dict[Subject, dict[int, float]] = {}
        self._together = together_ns

    def __len__(self) -> int:
        """Return how many subjects are remembered."""
        return len(self._kept)

    def lacks(self, parts: Mapping[Machine, Iterable[Sample]]) -> int:
        """Return of how many subjects that nothing is remembered of."""
        told = {_subject(machine, part) for machine, of_it in parts.items() for part in of_it}
        return len(told - self._kept.keys())

    @property
    def machines(self) -> set[Machine]:
        """Machines of which something is remembered."""
        return {machine for machine, _, _, _ in self._kept}

    def joined(self, machine: Machine, parts: Iterable[Sample]) -> list[Sample]:
        """Return each part with what is known of its row; what adds nothing to it is left out.

        `keep` what came of it once it is durable.
        """
        found: dict[Subject, dict[int, Sample]] = {}
        near: dict[Subject, _Near] = {}
        for part in parts:
            subject = _subject(machine, part)
            if part.lane is Lane.STATIC and self._was_said(subject, part):
                continue
            kept, new = self._kept.get(subject, {}), found.setdefault(subject, {})
            instants = near.get(subject)
            if instants is None:
                instants = near[subject] = _Near(self._together, kept)
            at = instants.of(part.measured_at)
            before = new.get(at) or kept.get(at)
            if before is not None and at != part.measured_at and _says_otherwise(before, part):
                at, before = part.measured_at, None  # it was measured once more, and is no part of that
            if before is None:
                instants.add(at)
            joined = part if before is None else _join(before, part)
            if joined is not before:
                new[at] = joined
        return [row for of_it in found.values() for row in of_it.values()]

    def _was_said(self, subject: Subject, part: Sample) -> bool:
        """Tell whether the row before says the same: not one further back, as a series can end and begin again."""
        rows = self._kept.get(subject, {})
        at = max((one for one in rows if one < part.measured_at), default=None)
        return (
            at is not None
            and part.measured_at - at < STATIC_SECONDS * NANOS
            and part.values.items() <= rows[at].values.items()
            and not part.dims
        )

    def keep(self, machine: Machine, rows: Sequence[Sample], written: float) -> None:
        """Remember rows; `written` in seconds of the monotonic clock is when they came: what waited is old by then."""
        subjects = {_subject(machine, row) for row in rows}
        for row in rows:
            subject = _subject(machine, row)
            times = self._written.setdefault(subject, {})
            instants = self._kept.setdefault(subject, {})
            self._instants += row.measured_at not in instants
            instants[row.measured_at], times[row.measured_at] = row, written
        for subject in subjects:
            self._trim(subject, INSTANTS_MOST, written - CATCH_UP_SECONDS)
        if self._instants - INSTANTS_KEPT * len(self._kept) > self._earlier_most:
            for subject in self._kept:
                self._trim(subject, INSTANTS_KEPT, 0.0)

    def _trim(self, subject: Subject, most: int, since: float) -> None:
        """Forget what of a subject is more than its newest, and was written before `since` or is more than `most`."""
        instants, times = self._kept[subject], self._written[subject]
        in_order = sorted(instants)
        for number, old in enumerate(in_order[:-INSTANTS_KEPT]):
            if number < len(in_order) - most or times[old] < since:
                del instants[old], times[old]
                self._instants -= 1

    def forget_before(self, written: float) -> None:
        """Forget subjects of which nothing new was written since then, in seconds of the monotonic clock."""
        self._written = {subject: times for subject, times in self._written.items() if max(times.values()) >= written}
        self._kept = {subject: rows for subject, rows in self._kept.items() if subject in self._written}
        self._instants = sum(map(len, self._kept.values()))


class _Near:
    """Instants of a subject, found by those near them: at once, however many there are."""

    def __init__(self, together: int, known: Iterable[int]) -> None:
        self._together = together
        self._places: dict[int, list[int]] = {}
        for at in known:
            self.add(at)

    def add(self, at: int) -> None:
        self._places.setdefault(at // (self._together + 1), []).append(at)

    def of(self, at: int) -> int:
        """Return the instant of a row that a part belongs to: the next that is near enough, or its own."""
        place = at // (self._together + 1)
        around = [one for number in (place - 1, place, place + 1) for one in self._places.get(number, ())]
        nearest = min(around, key=lambda one: abs(one - at), default=at)
        return nearest if abs(nearest - at) <= self._together else at


def _subject(machine: Machine, sample: Sample) -> Subject:
    return machine, sample.view.key if sample.view is not None else "", sample.reader, sample.lane


def _says_otherwise(before: Sample, part: Sample) -> bool:
    """Tell whether a part has another value of what the row has one of."""
    known = _dims(before)
    return any(before.values.get(name, value) != value for name, value in part.values.items()) or any(
        known.get(name, value) != value for name, value in _dims(part).items()
    )


def _dims(sample: Sample) -> dict[tuple[str, tuple[str, ...]], Value | Absent]:
    return {(one.metric, one.labels): one.value for one in sample.dims}


def _join(before: Sample, part: Sample) -> Sample:
    """Return both as one; `before` itself where the part adds nothing."""
    values = _merge(before.values, part.values)
    known = _dims(before)
    dims = _merge(known, _dims(part))
    if values is before.values and dims is known:
        return before
    return msgspec.structs.replace(
        before,
        values=dict(values),
        dims=tuple(DimValue(metric, labels, value) for (metric, labels), value in dims.items()),
    )


def _merge(before: Mapping[K, Value | Absent], part: Mapping[K, Value | Absent]) -> Mapping[K, Value | Absent]:
    """Return all of both; where they differ neither is right. `before` itself where nothing changes."""
    changed = {
        name: together
        for name, value in part.items()
        if (together := agreed(before.get(name), value)) != before.get(name)
    }
    return {**before, **changed} if changed else before
