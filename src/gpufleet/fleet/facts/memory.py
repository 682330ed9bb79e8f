"""Memory between judgements: subjects by key, sums over the last hour, and previous measurements. Pure.

Arrays with a cell per subject. A subject that is not judged for a day is dropped. Time is the sum of the steps forward
of the hub's clock, so that a step back changes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from gpufleet.fleet.rules.logic import Column
from gpufleet.model.time import NANOS

HOUR_SECONDS, DAY_SECONDS = 3600, 86400

BUCKETS = 12
"""Buckets of a window of an hour: a sum is of the last hour with an error of at most five minutes."""

LATE_SECONDS = 600
"""Time without a newer measurement for which an older one is ignored as late."""

MAX_READERS = 4096
"""Maximum number of names of readers; counters of others are not compared."""


class HourSums:
    """Sums over the last hour, one per subject, in buckets."""

    def __init__(self, dtype: Any) -> None:
        """Take the type of the numbers of a bucket; sums saturate at its maximum."""
        self._cells: Column = np.zeros((0, BUCKETS), dtype)
        self._bucket = 0

    def arrange(self, before: Column) -> None:
        """Arrange the subjects by their earlier position, -1 for a new one."""
        self._cells = _arranged(self._cells, before)

    def turn(self, second: int) -> None:
        """Drop the buckets that are older than an hour."""
        bucket = second * BUCKETS // HOUR_SECONDS
        for passed in range(max(self._bucket + 1, bucket - BUCKETS + 1), bucket + 1):
            self._cells[:, passed % BUCKETS] = 0
        self._bucket = max(bucket, self._bucket)

    def add(self, rows: Column, amounts: Column) -> None:
        """Add amounts of at least 0 to the sums of rows."""
        cells = self._cells[rows, self._bucket % BUCKETS]
        limit = np.iinfo(cells.dtype).max
        self._cells[rows, self._bucket % BUCKETS] = np.minimum(cells.astype(np.float64) + amounts, limit)

    def sums(self, rows: Column) -> Column:
        """Return the sums of rows."""
        return np.asarray(self._cells[rows].sum(axis=1, dtype=np.float64))

    @property
    def bytes(self) -> int:
        """Size of the state."""
        return int(self._cells.nbytes)


class Subjects:
    """Subjects by a hash of their key, with the columns of their state.

    Two of a million keys have equal hashes with a probability of less than one in ten million. The hashes are salted
    per process: a sender cannot choose them.

    Attributes:
        columns: state by name; a new subject has 0.
        sums: sums over the last hour by name.
        second: time of the newest judgement, in seconds of the memory's time.
    """

    def __init__(self, columns: Iterable[tuple[str, Any]], sums: Iterable[tuple[str, Any]]) -> None:
        """Take names and types of the columns and sums."""
        self.columns: dict[str, Column] = {name: np.zeros(0, dtype) for name, dtype in columns}
        self.sums = {name: HourSums(dtype) for name, dtype in sums}
        self.columns |= {"judged": np.zeros(0, np.int32), "since": np.zeros(0, np.int32)}
        self.second = 0
        self._keys = np.zeros(0, np.int64)

    def judge(self, keys: Column, second: int) -> Column:
        """Return the rows of the subjects with these hashes at a time; new ones are added, old ones are dropped.

        Time without a judgement, more than a bucket of the sums, interrupts the knowledge about a subject.
        """
        self.second = second
        rows = np.arange(len(keys))
        before = rows if self._is_unchanged(keys) else self._find(keys)
        left = np.ones(len(self._keys), bool)
        left[before[before >= 0]] = False
        left &= self.columns["judged"] > second - DAY_SECONDS
        kept = np.concatenate([before, np.flatnonzero(left)])
        if before is not rows or len(kept) < len(self._keys):
            self._keys = np.concatenate([keys, self._keys[left]])
            self.columns = {name: _arranged(column, kept) for name, column in self.columns.items()}
            for one in self.sums.values():
                one.arrange(kept)
        for one in self.sums.values():
            one.turn(second)
        is_new = before < 0
        is_interrupted = is_new | (second - self.columns["judged"][rows] > HOUR_SECONDS // BUCKETS)
        self.columns["since"][rows] = np.where(is_interrupted, second, self.columns["since"][rows])
        self.columns["judged"][rows] = second
        return rows

    def known_seconds(self, rows: Column) -> Column:
        """Return the time for which each subject is known without interruption."""
        return self.second - self.columns["since"][rows]

    def hour(self, name: str, rows: Column) -> Column:
        """Return sums over the last hour, as `certain` does."""
        return self.certain(self.sums[name].sums(rows), rows)

    def certain(self, sums: Column, rows: Column) -> Column:
        """Return sums over the last hour, and NaN in place of 0 while less than the hour is known."""
        return np.where((sums > 0) | (self.known_seconds(rows) >= HOUR_SECONDS), sums, np.nan)

    def _is_unchanged(self, keys: Column) -> bool:
        return len(keys) <= len(self._keys) and bool((self._keys[: len(keys)] == keys).all())

    def _find(self, keys: Column) -> Column:
        """Return the row of each key, -1 for a new one."""
        order = np.argsort(self._keys)
        if not len(order):
            return np.full(len(keys), -1, np.int64)
        place = np.searchsorted(self._keys[order], keys)
        place[place == len(order)] = 0
        return np.where(self._keys[order][place] == keys, order[place], -1)

    @property
    def bytes(self) -> int:
        """Size of the state."""
        columns = sum(column.nbytes for column in self.columns.values())
        return int(self._keys.nbytes + columns + sum(one.bytes for one in self.sums.values()))


class ReaderNumbers:
    """Numbers of readers by name, equal in every judgement."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, readers: Sequence[str]) -> Column:
        """Return the number of each reader; 0 for a new one if there are too many."""
        for name in readers:
            if name not in self._numbers and len(self._numbers) < MAX_READERS:
                self._numbers[name] = len(self._numbers) + 1
        return np.array([self._numbers.get(name, 0) for name in readers], np.int16)


class CounterReading(msgspec.Struct, frozen=True):
    """Reading of a counter of each subject at an instant.

    Attributes:
        value: its value, NaN for none.
        reader: number of the reader that gives it, see `ReaderNumbers`.
        session: driver session of the value; 0 if the reader has none.
        at: its measurement, nanoseconds since 1970 by the machine's clock.
    """

    value: Column
    reader: Column
    session: Column
    at: Column


class NewestMeasurements:
    """Time of the newest measurement of each subject.

    Two sources with different delays can report one subject in turns: their older measurements are late, and ignored.
    After `LATE_SECONDS` without a newer measurement an older one counts, because the machine's clock was set back.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def columns(self) -> tuple[tuple[str, Any], ...]:
        """Columns of `Subjects`."""
        return (f"{self._name}_at", np.int64), (f"{self._name}_second", np.int32)

    def update(self, subjects: Subjects, rows: Column, at: Column, known: Column) -> tuple[Column, Column]:
        """Record measurements; return whether each counts, and the time of the one before (0 for none).

        Args:
            subjects: the subjects.
            rows: their rows.
            at: times of the measurements, nanoseconds since 1970.
            known: whether each subject has a measurement.
        """
        newest, second = (subjects.columns[name] for name, _ in self.columns)
        before = newest[rows]
        counts = known & ((at >= before) | (subjects.second - second[rows] >= LATE_SECONDS))
        moved = counts & (at != before)
        newest[rows[moved]], second[rows[moved]] = at[moved], subjects.second
        return counts, before


class CounterMemory:
    """Previous values of a counter of each subject."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._newest = NewestMeasurements(name)

    @property
    def columns(self) -> tuple[tuple[str, Any], ...]:
        """Columns of `Subjects`."""
        return (
            (f"{self._name}_value", np.float64),
            (f"{self._name}_session", np.uint32),
            (f"{self._name}_reader", np.int16),
            *self._newest.columns,
        )

    def compare(self, subjects: Subjects, rows: Column, now: CounterReading) -> tuple[Column, Column]:
        """Record the values; return the increase of each counter, and whether it decreased without a new session.

        The increase is 0 if it is unknown: at the first value, if another reader gives the value, or if the machine's
        clock was set back. After a new session the counter started at 0. Late values are ignored.
        """
        value, session, reader = (subjects.columns[name] for name, _ in self.columns[:3])
        short = (now.session ^ (now.session >> np.uint64(32))).astype(np.uint32)
        is_known, before = self._newest.update(subjects, rows, now.at, ~np.isnan(now.value) & (now.reader > 0))
        is_same_reader = is_known & (reader[rows] == now.reader)
        is_same = is_same_reader & (session[rows] == short)
        is_later = is_same & (now.at >= before)
        step = now.value - value[rows]
        increase = np.where(is_later & (step > 0), step, 0.0)
        increase = np.where(is_same_reader & ~is_same, now.value, increase)
        decreased = is_later & (step < 0)
        at = rows[is_known]
        value[at], session[at], reader[at] = now.value[is_known], short[is_known], now.reader[is_known]
        return increase, decreased


def _arranged(cells: Column, before: Column) -> Column:
    """Return the cells by their earlier position; 0 for -1."""
    found = np.zeros((len(before), *cells.shape[1:]), cells.dtype)
    known = before >= 0
    found[known] = cells[before[known]]
    return found


class MemoryClock:
    """Seconds since the first judgement, without steps back of the hub's clock."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._elapsed = 0

    def second(self, now: int) -> int:
        """Return the time at an instant, in nanoseconds since 1970."""
        if self._last is not None:
            self._elapsed += max(0, now - self._last)
        self._last = now
        return self._elapsed // NANOS
