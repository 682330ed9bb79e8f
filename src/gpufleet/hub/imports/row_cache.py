"""Cache of the newest imported rows, to merge rows that arrive in parts.

A writer may split one scrape into several requests, by series and not by target. The store keeps only the newest row
for each subject, reader, lane and instant. So each part is merged with earlier parts of the same instant and written as
a whole row.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from gpufleet.dialects.registry import lists_ecc_modes
from gpufleet.dialects.sample_builder import SERIES_ENDED, merge_readings
from gpufleet.fleet.board import DECIDING, RACK_PLACE, deciding_readings, may_have_defaults, without_defaults
from gpufleet.fleet.ecc import (
    ECC_MODE,
    NO_ECC,
    EccMode,
    board_ecc_mode,
    board_of,
    has_ecc_counts,
    missing_ecc_mode,
    with_ecc_mode,
)
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind
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

Device = tuple[Machine, str, str]
"""Machine, key of the view and reader."""

_DECIDING_LANES = sorted({CATALOGUE[name].lane for name in DECIDING})


class RowCache:
    """Rows of the newest instants by subject."""

    def __init__(self, merge_window_ns: int = 0, *, max_earlier: int = MAX_EARLIER) -> None:
        """Create an empty cache; instants of a subject at most `merge_window_ns` apart are merged."""
        self._max_earlier = max_earlier
        self._instants = 0  # of all subjects
        self._kept: dict[Subject, dict[int, Sample]] = {}
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
        board rules out: see `ecc_count`. The mode may be that of an earlier part.

        Rows of the cache are not changed: call `keep` with the returned rows once they are durable.
        """
        found: dict[Subject, dict[int, Sample]] = {}
        near: dict[Subject, _InstantIndex] = {}
        in_order = sorted(parts, key=lambda one: one.measured_at)
        for part in self._without_board_defaults(machine, in_order):
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
            if before is not None and at != part.measured_at and _contradicts(before, part):
                at, before = part.measured_at, None  # another measurement, not a part of that row
            if before is None and self._merge_window:
                near[subject].add(at)
            if before is None:
                new[at] = part
            elif (joined := _join(before, part)) is not before:
                # A later part can show that an earlier one has defaults.
                new[at] = joined if DECIDING.isdisjoint(part.values) else without_defaults(joined)
        return [row for instants in found.values() for row in instants.values()]

    def _without_board_defaults(self, machine: Machine, parts: Sequence[Sample]) -> Iterator[Sample]:
        """Yield the parts, which are in order of time, judged by what was known at their time."""
        deciding: dict[Device, list[Sample]] = {}
        modes: dict[tuple[str, str], list[Sample]] = {}
        for part in parts:
            if not DECIDING.isdisjoint(part.values):
                deciding.setdefault(_device_of(machine, part), []).append(part)
            if ECC_MODE in part.values and (board := board_of(part)) is not None:
                modes.setdefault((board, part.reader), []).append(part)
        known: dict[Device, _KnownReadings] = {}
        known_modes: dict[tuple[str, str], _KnownReadings] = {}
        effective: dict[tuple[str, str, EccMode], EccMode] = {}
        of_boards = _by_board(parts) if any(map(has_ecc_counts, parts)) else {}
        for part in parts:
            board, at = board_of(part), part.measured_at + self._merge_window
            if may_have_defaults(part):
                device = _device_of(machine, part)
                if device not in known:
                    known[device] = _KnownReadings(
                        [*self._rows(device, _DECIDING_LANES), *deciding.get(device, [])], _deciding
                    )
                part = without_defaults(part, known[device].until(at))
            if board is None or not has_ecc_counts(part):
                yield part
                continue
            place = board, part.reader
            if place not in known_modes:
                rows = self._rows((machine, *place), [CATALOGUE[ECC_MODE].lane])
                known_modes[place] = _KnownReadings([*rows, *modes.get(place, [])], _ecc_modes)
            mode = known_modes[place].until(at).get(ECC_MODE)
            if (*place, mode) not in effective:
                own = self._effective_ecc_mode(machine, board, part.reader, mode, of_boards[place])
                effective[*place, mode] = own
            yield with_ecc_mode(part, effective[*place, mode])

    def _rows(self, device: Device, lanes: Iterable[Lane]) -> list[Sample]:
        return [row for lane in lanes for row in self._kept.get((*device, lane), {}).values()]

    def _effective_ecc_mode(
        self, machine: Machine, board: str, reader: str, mode: EccMode, parts: Sequence[Sample]
    ) -> EccMode:
        """Return the ECC mode in which the counts of a board count, by its parts and its rows."""
        if mode is not None and not isinstance(mode, Absent):
            return mode
        own = [*parts, *self._rows((machine, board, reader), Lane)]
        if mode is None:
            mode = NO_ECC if lists_ecc_modes(reader) else missing_ecc_mode(own)
        return board_ecc_mode(mode, own)

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
        for row in rows:
            subject = subject_of(machine, row)
            times = self._written.setdefault(subject, {})
            instants = self._kept.setdefault(subject, {})
            self._instants += row.measured_at not in instants
            instants[row.measured_at], times[row.measured_at] = row, written
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
                del instants[old], times[old]
                self._instants -= 1

    def drop(self, machine: Machine) -> None:
        """Drop the subjects of a machine."""
        self._drop_except({subject for subject in self._kept if subject[0] != machine})

    def drop_before(self, written: float) -> None:
        """Drop subjects without rows written since a monotonic time in seconds."""
        self._drop_except({one for one, times in self._written.items() if max(times.values()) >= written})

    def _drop_except(self, subjects: Container[Subject]) -> None:
        self._written = {subject: times for subject, times in self._written.items() if subject in subjects}
        self._kept = {subject: rows for subject, rows in self._kept.items() if subject in self._written}
        self._repeated = {subject: part for subject, part in self._repeated.items() if subject in self._written}
        self._instants = sum(map(len, self._kept.values()))


class _KnownReadings:
    """Readings of a device by time: those known at a time are the newest ones until then, else the first ones after."""

    def __init__(self, rows: Iterable[Sample], read: Callable[[Sample], Mapping[str, Value | Absent]]) -> None:
        """Take rows of any order, the later one of equal times counts, and what is read of a row."""
        self._left = deque((row.measured_at, read(row)) for row in sorted(rows, key=lambda one: one.measured_at))
        self._known: dict[str, Value | Absent] = {}
        for _, found in reversed(self._left):
            self._known |= found

    def until(self, at: int) -> Mapping[str, Value | Absent]:
        """Return the readings at a time; calls are in order of time."""
        while self._left and self._left[0][0] <= at:
            self._known |= self._left.popleft()[1]
        return self._known


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


def _device_of(machine: Machine, sample: Sample) -> Device:
    return machine, sample.view.key if sample.view is not None else "", sample.reader


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


def _deciding(row: Sample) -> dict[str, Value | Absent]:
    """Return the readings that decide about defaults.

    An absent place in a rack is itself the result of such a rule, and the end of a series proves nothing about a board.
    """
    return {
        name: value
        for name, value in deciding_readings(row).items()
        if value != SERIES_ENDED and (name not in RACK_PLACE or not isinstance(value, Absent))
    }


def _ecc_modes(row: Sample) -> dict[str, Value | Absent]:
    return {ECC_MODE: row.values[ECC_MODE]} if row.values.get(ECC_MODE, SERIES_ENDED) != SERIES_ENDED else {}


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


def _by_board(parts: Iterable[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """Return the parts by board and reader; those of the machine itself are left out."""
    found: dict[tuple[str, str], list[Sample]] = {}
    for part in parts:
        if (board := board_of(part)) is not None:
            found.setdefault((board, part.reader), []).append(part)
    return found


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
