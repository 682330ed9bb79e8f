"""Cache of the newest imported rows, to merge rows that arrive in parts.

A writer may split one scrape into several requests, by series and not by target. The store keeps only the newest row
for each subject, reader, lane and instant. So each part is merged with earlier parts of the same instant and written as
a whole row.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from gpufleet.dialects.sample_builder import SERIES_ENDED, STATE, is_end_of_series, merge_readings
from gpufleet.fleet.ecc import board_of, has_ecc_counts
from gpufleet.hub.imports.judgement import Device, Readings, RowJudge, is_judged, judging_readings
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind
from gpufleet.model.device_state import OK
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES
from gpufleet.model.time import NANOS

K = TypeVar("K")

MIN_INSTANTS = 2
"""Newest instants kept of each subject. Parts of instants that are no longer kept are written unmerged."""

CATCH_UP_SECONDS = 30.0
"""Retention of earlier instants, because the queues of one writer catch up at different speeds after an outage."""

MAX_INSTANTS = 256
"""Maximum number of instants kept of each subject."""

MAX_EARLIER = 250_000
"""Maximum number of earlier instants of all subjects, about 0.8 GB at 25 values each; beyond it, they are dropped."""

STATIC_SECONDS = 600
"""Interval at which unchanged static values are written again, because every scrape repeats them."""

CURRENT_SECONDS = int(MISSED_PASSES * LANE_SECONDS[Lane.STATIC])
"""Age up to which static values of a row are current."""

Subject = tuple[Machine, str, str, Lane]
"""Machine, key of the view (empty for the machine itself), reader and lane."""

Instants = dict[int, Sample]
"""Rows of a subject, by time of measurement."""


class _MergedRow(NamedTuple):
    """A row as it is written, and as it was reported."""

    judged: Sample
    reported: Sample


class RowCache:
    """Rows of the newest instants by subject."""

    def __init__(self, merge_window_ns: int = 0, *, max_earlier: int = MAX_EARLIER) -> None:
        """Create an empty cache; instants of a subject at most `merge_window_ns` apart are merged."""
        self._max_earlier = max_earlier
        self._instants = 0  # of all subjects
        self._kept: dict[Subject, Instants] = {}  # as reported; `_stored` ones as judged
        self._stored: set[tuple[Subject, int]] = set()  # subject and time of rows that were read from the store
        self._merged: dict[Machine, dict[tuple[Subject, int], _MergedRow]] = {}  # that are not kept yet
        self._dropped: dict[Device, dict[str, tuple[int, Value | Absent]]] = {}  # judging readings of dropped rows
        self._written: dict[Subject, dict[int, float]] = {}
        self._repeated: dict[Subject, Sample] = {}  # newest static part that an earlier row has already
        self._merge_window = merge_window_ns

    def __len__(self) -> int:
        """Return the number of subjects."""
        return len(self._kept)

    def count_new(self, parts: Mapping[Machine, Iterable[Sample]]) -> int:
        """Return the number of subjects in `parts` that are not in the cache."""
        subjects = {subject_of(machine, part) for machine, own_parts in parts.items() for part in own_parts}
        return len(subjects - self._kept.keys())

    def __contains__(self, subject: object) -> bool:
        """Return whether a subject has rows in the cache."""
        return subject in self._kept

    @property
    def machines(self) -> set[Machine]:
        """Machines with rows in the cache."""
        return {machine for machine, _, _, _ in self._kept}

    def merge(self, machine: Machine, parts: Iterable[Sample]) -> list[Sample]:
        """Return the rows that result from merging parts into the cached rows, without unchanged rows.

        The driver's defaults for what a board does not have become absent, and so do ECC counts that the mode of their
        board rules out: see `RowJudge`. Rows of the cache are returned, too, if the new ones change their judgement.

        The end of the series of a failed GPU makes no row: its last state counts until it is stale.

        Rows of the cache are not changed: call `keep` with the returned rows once they are durable.
        """
        found = self._joined(machine, parts)
        merged = self._merged[machine] = self._judged(machine, found)
        return [row.judged for row in merged.values()]

    def _joined(self, machine: Machine, parts: Iterable[Sample]) -> dict[Subject, Instants]:
        """Return the rows that parts change, as reported."""
        found: dict[Subject, Instants] = {}
        near: dict[Subject, _InstantIndex] = {}
        for part in sorted(parts, key=lambda one: one.measured_at):
            subject = subject_of(machine, part)
            kept, new = self._kept.get(subject, {}), found.setdefault(subject, {})
            if part.lane is Lane.STATIC:
                rows = {**kept, **new}
                if _repeats_previous(part, rows):
                    self._note_repeated(subject, part)
                    continue
                place = _place_beside_values(part, rows)
                if place == part.measured_at:
                    part = self._with_repeated(subject, part)
                else:
                    self._note_repeated(subject, part)
                    part = msgspec.structs.replace(part, measured_at=place)
            at = part.measured_at
            if self._merge_window:
                if subject not in near:
                    near[subject] = _InstantIndex(self._merge_window, kept)
                at = near[subject].of(at)
            before = new.get(at) or kept.get(at)
            if before is None and is_end_of_series(part) and _has_failed(at, {**kept, **new}):
                continue
            if before is not None and at != part.measured_at and _contradicts(before, part):
                at, before = part.measured_at, None  # another measurement, not a part of that row
            if before is None and self._merge_window:
                near[subject].add(at)
            if before is None:
                new[at] = part
            elif (joined := _join(before, part)) is not before:
                new[at] = joined
        return found

    def _judged(self, machine: Machine, found: Mapping[Subject, Instants]) -> dict[tuple[Subject, int], _MergedRow]:
        """Return the changed rows as judged, and those of the cache that are judged differently by them."""
        before, after = (RowJudge(_JudgingRows(self, rows), self._merge_window) for rows in ({}, found))
        merged: dict[tuple[Subject, int], _MergedRow] = {}
        news: dict[Device, None] = {}
        for subject, rows in found.items():
            device, kept = subject[:3], self._kept.get(subject)
            newest = kept[max(kept)] if kept else None
            for at, row in rows.items():
                merged[subject, at] = _MergedRow(after.judged(machine, row), row)
                if has_ecc_counts(row) and before.ecc_mode(machine, row) != after.ecc_mode(machine, row):
                    news[machine, board_of(row) or "", row.reader] = None  # its first errors prove that it has ECC
                judging = judging_readings(row)
                if not judging or device in news:
                    continue
                if newest is not None and newest.measured_at <= at and judging.items() <= newest.values.items():
                    continue  # most rows
                if not judging.items() <= before.known(device, at).items():
                    news[device] = None
        for device in news:
            for lane in Lane:
                subject = (*device, lane)
                for at, row in self._kept.get(subject, {}).items():
                    if (subject, at) not in merged and is_judged(row):
                        judged = after.judged(machine, row)
                        written = row if (subject, at) in self._stored else before.judged(machine, row)
                        if judged != written:
                            merged[subject, at] = _MergedRow(judged, row)
        return merged

    def reported_rows(self, device: Device, found: Mapping[Subject, Instants]) -> list[Sample]:
        """Return the rows of a device as reported: those of the cache, with newer ones of `found`."""
        subjects = [(*device, lane) for lane in Lane]
        return [row for one in subjects for row in {**self._kept.get(one, {}), **found.get(one, {})}.values()]

    def known_before(self, device: Device) -> Readings:
        """Return the newest judging readings of the dropped rows of a device."""
        return {name: value for name, (_, value) in self._dropped.get(device, {}).items()}

    def _note_repeated(self, subject: Subject, part: Sample) -> None:
        before = self._repeated.get(subject)
        is_same = before is not None and before.measured_at == part.measured_at
        self._repeated[subject] = _join(before, part) if before is not None and is_same else part

    def _with_repeated(self, subject: Subject, part: Sample) -> Sample:
        """Return a part together with the part of its instant that was not written, because it repeats a row."""
        repeated = self._repeated.get(subject)
        return part if repeated is None or repeated.measured_at != part.measured_at else _join(repeated, part)

    def keep(self, machine: Machine, rows: Sequence[Sample], written: float) -> None:
        """Add rows; `written` is the monotonic time in seconds at which their request arrived."""
        subjects = {subject_of(machine, row) for row in rows}
        merged = self._merged.get(machine, {})
        for row in rows:
            subject = subject_of(machine, row)
            times = self._written.setdefault(subject, {})
            instants = self._kept.setdefault(subject, {})
            known = merged.pop((subject, row.measured_at), None)
            self._instants += row.measured_at not in instants
            if known is None:
                self._stored.add((subject, row.measured_at))
            else:
                self._stored.discard((subject, row.measured_at))
            instants[row.measured_at] = row if known is None else known.reported
            times[row.measured_at] = written
        if not merged:
            self._merged.pop(machine, None)
        for subject in subjects:
            self._trim(subject, MAX_INSTANTS, written - CATCH_UP_SECONDS)
        if self._instants - MIN_INSTANTS * len(self._kept) > self._max_earlier:
            for subject in self._kept:
                self._trim(subject, MIN_INSTANTS, 0.0)

    def _trim(self, subject: Subject, most: int, since: float) -> None:
        """Drop instants of a subject beyond the newest `most`, or written before `since`, except `MIN_INSTANTS`."""
        instants, times = self._kept[subject], self._written[subject]
        in_order = sorted(instants)
        for number, old in enumerate(in_order[:-MIN_INSTANTS]):
            if number < len(in_order) - most or times[old] < since:
                self._note_dropped(subject, instants.pop(old))
                self._stored.discard((subject, old))
                del times[old]
                self._instants -= 1

    def _note_dropped(self, subject: Subject, row: Sample) -> None:
        judging = judging_readings(row)
        if not judging:
            return
        known = self._dropped.setdefault(subject[:3], {})
        known |= {
            name: (row.measured_at, value)
            for name, value in judging.items()
            if name not in known or known[name][0] <= row.measured_at
        }

    def drop(self, machine: Machine) -> None:
        """Drop the subjects of a machine."""
        self._merged.pop(machine, None)
        self._drop_except({subject for subject in self._kept if subject[0] != machine})

    def drop_before(self, written: float) -> None:
        """Drop subjects without rows written since a monotonic time in seconds."""
        self._drop_except({one for one, times in self._written.items() if max(times.values()) >= written})

    def _drop_except(self, subjects: Container[Subject]) -> None:
        self._written = {subject: times for subject, times in self._written.items() if subject in subjects}
        self._kept = {subject: rows for subject, rows in self._kept.items() if subject in self._written}
        self._repeated = {subject: part for subject, part in self._repeated.items() if subject in self._written}
        devices = {subject[:3] for subject in self._kept}
        self._dropped = {device: judging for device, judging in self._dropped.items() if device in devices}
        self._stored = {one for one in self._stored if one[0] in self._kept}
        self._instants = sum(map(len, self._kept.values()))


class _JudgingRows:
    """Rows of a cache with changed ones, for a `RowJudge`."""

    def __init__(self, cache: RowCache, found: Mapping[Subject, Instants]) -> None:
        self._cache = cache
        self._found = found
        self._of_boards: dict[Device, list[Sample]] | None = None

    def rows(self, device: Device) -> Sequence[Sample]:
        return self._cache.reported_rows(device, self._found)

    def rows_of_board(self, board: Device) -> Sequence[Sample]:
        if self._of_boards is None:
            self._of_boards = _by_board(self._found)
        return [*self.rows(board), *self._of_boards.get(board, ())]

    def known_before(self, device: Device) -> Readings:
        return self._cache.known_before(device)


class _InstantIndex:
    """Index of a subject's instants for constant-time search of the nearest one."""

    def __init__(self, merge_window: int, known: Iterable[int]) -> None:
        self._merge_window = merge_window
        self._places: dict[int, list[int]] = {}
        for at in known:
            self.add(at)

    def add(self, at: int) -> None:
        self._places.setdefault(at // (self._merge_window + 1), []).append(at)

    def of(self, at: int) -> int:
        """Return the nearest instant within the merge window, or `at` itself if there is none."""
        place = at // (self._merge_window + 1)
        around = [one for number in (place - 1, place, place + 1) for one in self._places.get(number, ())]
        nearest = min(around, key=lambda one: abs(one - at), default=at)
        return nearest if abs(nearest - at) <= self._merge_window else at


def subject_of(machine: Machine, sample: Sample) -> Subject:
    """Return the subject of a row."""
    return machine, sample.view.key if sample.view is not None else "", sample.reader, sample.lane


def _has_failed(at: int, rows: Mapping[int, Sample]) -> bool:
    """Return whether the newest row before an instant has a state other than `ok`, or one that became `stale`."""
    newest = max((one for one in rows if one < at), default=None)
    state = None if newest is None else rows[newest].values.get(STATE)
    return state.reason is Reason.STALE if isinstance(state, Absent) else state is not None and state != OK


def _repeats_previous(part: Sample, rows: Mapping[int, Sample]) -> bool:
    """Return whether the directly preceding row has the same values, and the part's instant has no row of its own.

    An earlier row may be of an ended series.
    """
    at = max((one for one in rows if one <= part.measured_at), default=None)
    return (
        at is not None
        and 0 < part.measured_at - at < STATIC_SECONDS * NANOS
        and part.values.items() <= rows[at].values.items()
        and not part.dims
    )


def _place_beside_values(part: Sample, rows: Mapping[int, Sample]) -> int:
    """Return the instant of a part that has texts only: that of the newest row, if that has other current values.

    Every point of OTLP repeats the texts of its device at its own instant, and other static values come once in a pass.
    A row of texts would hide them, as the newest row of a lane counts. Texts that differ make a row of their own.
    """
    oldest = part.measured_at - CURRENT_SECONDS * NANOS
    at = max((one for one in rows if oldest <= one <= part.measured_at), default=None)
    if at is None or not _has_texts_only(part) or _has_texts_only(rows[at]):
        return part.measured_at
    known = rows[at].values
    is_same = all(value in (SERIES_ENDED, known.get(name, value)) for name, value in part.values.items())
    return at if is_same else part.measured_at


def _has_texts_only(row: Sample) -> bool:
    return not row.dims and all(CATALOGUE[name].kind is MetricKind.INFO for name in row.values)


def _contradicts(before: Sample, part: Sample) -> bool:
    """Return whether a part has a value that differs from the row's."""
    known = _dims(before)
    return any(before.values.get(name, value) != value for name, value in part.values.items()) or any(
        known.get(name, value) != value for name, value in _dims(part).items()
    )


def _dims(sample: Sample) -> dict[tuple[str, tuple[str, ...]], Value | Absent]:
    return {(one.metric, one.labels): one.value for one in sample.dims}


def _join(before: Sample, part: Sample) -> Sample:
    """Return the merged row, or `before` itself if the part adds nothing."""
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


def _by_board(found: Mapping[Subject, Instants]) -> dict[Device, list[Sample]]:
    """Return rows by the GPU that they are about, or whose MIG device they are about."""
    by_board: dict[Device, list[Sample]] = {}
    for (machine, _, reader, _), rows in found.items():
        for row in rows.values():
            if (board := board_of(row)) is not None:
                by_board.setdefault((machine, board, reader), []).append(row)
    return by_board


def _metric_of(name: object) -> str:
    """Return the metric of a reading, or of a reading with labels."""
    return str(name[0] if isinstance(name, tuple) else name)


def _merge(before: Mapping[K, Value | Absent], part: Mapping[K, Value | Absent]) -> Mapping[K, Value | Absent]:
    """Return the merged values, or `before` itself if nothing changes; see `agreed` for values that differ."""
    changed = {
        name: together
        for name, value in part.items()
        if (together := merge_readings(_metric_of(name), before.get(name), value)) != before.get(name)
    }
    return {**before, **changed} if changed else before
