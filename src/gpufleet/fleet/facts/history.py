"""History of GPUs and machines: the inputs of rules that need more than the newest samples. Pure.

The history is in memory only. After a restart it is empty, and uncertain numbers are missing: a number of events is
unknown until the whole window is known, unless it is positive.
"""

import msgspec
import numpy as np

from gpufleet.fleet.facts.core_readings import CoreMemory, CoreObservation
from gpufleet.fleet.facts.earlier import EarlierFindings
from gpufleet.fleet.facts.memory import (
    DAY_SECONDS,
    HOUR_SECONDS,
    CounterMemory,
    CounterReading,
    MemoryClock,
    NewestMeasurements,
    ReaderNumbers,
    Subjects,
)
from gpufleet.fleet.facts.metrics import ENERGY, RESET_COUNTERS, UNCORRECTED
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.time import NANOS

CERTAIN_SAMPLES, CERTAIN_ENERGY_SAMPLES = 30, 10
"""Identical samples from which their number counts even if no change was seen before."""

SLOWDOWN_MINUTES = 10
"""Minutes in which starts of slowdowns are counted."""

_HOURS = 25
_CHANGED, _ENERGY_CHANGED, _SLOW, _FREE, _HELD, _HELD_START = 1, 2, 4, 8, 16, 32
_ONES = np.array([number.bit_count() for number in range(1 << SLOWDOWN_MINUTES)], np.uint8)
_COUNTERS = {metric: CounterMemory(metric) for metric in RESET_COUNTERS}
_MESSAGES = CounterMemory("messages")
_CORE = CoreMemory()
_SAMPLES, _ENERGY_SAMPLES, _SLOWDOWNS = (NewestMeasurements(name) for name in ("sample", "energy_sample", "slow"))


class GpuObservation(msgspec.Struct, frozen=True, kw_only=True):
    """State of the GPUs of a cluster at a judgement.

    Attributes:
        keys: hash of the key of each GPU.
        noisy: number of its noisy readings.
        signature: hash of their values.
        sampled_at: measurement of the oldest of them, nanoseconds since 1970 by the machine's clock.
        counters: values of `RESET_COUNTERS` by metric.
        restarted_at: newest event after which its counters can start again, nanoseconds since 1970; 0 without one.
        slow: whether the hardware slows it down, NaN if unknown.
        slow_at: measurement of that.
        nvlinks: active NVLinks, NaN if unknown.
        nvlinks_before: number of active NVLinks that an earlier process compared it with, NaN if there is none.
        core: core readings.
        held: whether it has a holder, NaN if unknown.
        held_since: start of its newest holding, nanoseconds since 1970; 0 if unknown.
        now: nanoseconds since 1970 by the hub's clock.
    """

    keys: Column
    noisy: Column
    signature: Column
    sampled_at: Column
    counters: dict[str, CounterReading]
    restarted_at: Column
    slow: Column
    slow_at: Column
    nvlinks: Column
    nvlinks_before: Column
    core: CoreObservation
    held: Column
    held_since: Column
    now: int


class GpuMemory:
    """History of the GPUs of a cluster."""

    def __init__(self) -> None:
        columns = (
            *(("signature", np.uint64), ("cycles", np.uint16), ("energy_cycles", np.uint16)),
            *(*_SAMPLES.columns, *_ENERGY_SAMPLES.columns, *_SLOWDOWNS.columns),
            *(("flags", np.uint8), ("slowdowns", np.uint16), ("held_second", np.int32)),
            *(("nvlinks", np.dtype((np.uint8, _HOURS))), ("works_at", np.int64)),
            *(column for counter in _COUNTERS.values() for column in counter.columns),
            *_CORE.columns,
        )
        sums = (("resets", np.uint8), ("restarts", np.uint8), ("uncorrected", np.uint16))
        self._subjects = Subjects(columns, sums)
        self._hour = self._minute = 0

    @property
    def bytes(self) -> int:
        """Size of the state."""
        return self._subjects.bytes

    def record_works(self, keys: Column, works_at: Column, second: int) -> Column:
        """Record when GPUs worked, and return when each last did.

        Args:
            keys: hash of the key of each GPU.
            works_at: measurement that proves that it works, nanoseconds since 1970; 0 without one.
            second: time of the judgement by the memory's clock.
        """
        rows = self._subjects.judge(keys, second)
        found = np.maximum(self._subjects.columns["works_at"][rows], works_at)
        self._subjects.columns["works_at"][rows] = found
        return found

    def judge(self, seen: GpuObservation, second: int) -> dict[str, Column]:
        """Record the state of the GPUs, and return inputs of the rules by name, and the bit set `missing_core`.

        Args:
            seen: the GPUs.
            second: time of the judgement by the memory's clock.
        """
        self._turn(second)
        rows = self._subjects.judge(seen.keys, second)
        old_energy = self._subjects.columns[f"{ENERGY}_value"][rows].copy()
        found = {
            "noisy_readings": np.where(seen.noisy > 0, seen.noisy, np.nan),
            "identical_cycles": self._identical(seen, rows),
            **self._counters(seen, rows),
            "slowdown_starts": self._slowdowns(seen, rows),
            "nvlinks_day_before": self._nvlinks(seen, rows),
            "held_seconds": self._held(seen, rows),
        }
        found["identical_energy_cycles"] = self._identical_energy(seen, rows, old_energy)
        found["missing_core_readings"], found["missing_core"] = _CORE.judge(self._subjects, rows, seen.core)
        return found

    def _turn(self, second: int) -> None:
        """Advance the windows: hours of NVLinks and minutes of slowdowns."""
        columns, hour, minute = self._subjects.columns, second // HOUR_SECONDS, second // 60
        for passed in range(max(self._hour + 1, hour - _HOURS + 1), hour + 1):
            columns["nvlinks"][:, passed % _HOURS] = 0
        if minute > self._minute:
            columns["slowdowns"] <<= np.uint16(min(minute - self._minute, 15))
        self._hour, self._minute = hour, minute

    def _identical(self, seen: GpuObservation, rows: Column) -> Column:
        """Return the number of successive samples with identical noisy readings."""
        columns = self._subjects.columns
        signature = columns["signature"][rows]
        counts, at = _SAMPLES.update(self._subjects, rows, seen.sampled_at, seen.noisy > 0)
        is_sample = counts & (seen.sampled_at != at)
        is_equal = is_sample & (seen.sampled_at > at) & (signature == seen.signature) & (at > 0)
        is_change = is_sample & (at > 0) & (signature != seen.signature)
        cycles = _counted(columns["cycles"], rows, is_sample, is_equal)
        self._set(rows[is_change], _CHANGED)
        columns["signature"][rows[is_sample]] = seen.signature[is_sample]
        is_certain = self._has(rows, _CHANGED) | (cycles >= CERTAIN_SAMPLES)
        return np.where((seen.noisy > 0) & is_certain, cycles, np.nan)

    def _identical_energy(self, seen: GpuObservation, rows: Column, before: Column) -> Column:
        """Return the number of successive samples with the same energy counter."""
        columns, energy, energy_at = self._subjects.columns, seen.counters[ENERGY].value, seen.counters[ENERGY].at
        counts, at = _ENERGY_SAMPLES.update(self._subjects, rows, energy_at, ~np.isnan(energy))
        is_sample = counts & (energy_at != at)
        is_equal = is_sample & (energy_at > at) & (before == energy) & (at > 0)
        is_change = is_sample & (at > 0) & (before != energy)
        cycles = _counted(columns["energy_cycles"], rows, is_sample, is_equal)
        self._set(rows[is_change], _ENERGY_CHANGED)
        is_certain = self._has(rows, _ENERGY_CHANGED) | (cycles >= CERTAIN_ENERGY_SAMPLES)
        return np.where(~np.isnan(energy) & is_certain, cycles, np.nan)

    def _counters(self, seen: GpuObservation, rows: Column) -> dict[str, Column]:
        """Return the unexplained decreases of counters and the uncorrected errors in the last hour.

        Without a driver session a restart is not known: the first decrease within an hour is taken for one.
        """
        subjects, decreases, restarted = self._subjects, np.zeros(len(rows)), np.zeros(len(rows), bool)
        is_counted = np.zeros(len(rows), bool)
        for metric, counter in _COUNTERS.items():
            now = seen.counters[metric]
            increase, decreased = counter.compare(subjects, rows, now)
            is_counted |= ~np.isnan(now.value)
            decreases += decreased & (now.session != 0)
            restarted |= decreased & (now.session == 0)
            if metric == UNCORRECTED:
                subjects.sums["uncorrected"].add(rows, increase)
        subjects.sums["resets"].add(rows, decreases)
        subjects.sums["restarts"].add(rows, restarted)
        further = np.maximum(0, subjects.sums["restarts"].sums(rows) - 1)
        resets = subjects.certain(subjects.sums["resets"].sums(rows) + further, rows)
        is_reset = seen.restarted_at > seen.now - int(1.1 * HOUR_SECONDS * NANOS)
        resets = np.where(is_reset & ~np.isnan(resets), 0, resets)
        has_errors = ~np.isnan(seen.counters[UNCORRECTED].value)
        return {
            "unexplained_resets": np.where(is_counted, resets, np.nan),
            "uncorrected_errors": np.where(has_errors, subjects.hour("uncorrected", rows), np.nan),
        }

    def _slowdowns(self, seen: GpuObservation, rows: Column) -> Column:
        """Return the starts of slowdowns that successive samples show."""
        mask = self._subjects.columns["slowdowns"]
        known = self._subjects.known_seconds(rows)
        mask[rows[known == 0]] = 0
        counts, _ = _SLOWDOWNS.update(self._subjects, rows, seen.slow_at, ~np.isnan(seen.slow))
        is_slow = np.where(counts | np.isnan(seen.slow), seen.slow == 1, self._has(rows, _SLOW))
        starts = rows[is_slow & ~self._has(rows, _SLOW) & (known > 0)]
        mask[starts] |= np.uint16(1)
        self._assign(rows, _SLOW, is_slow)
        count = _ONES[mask[rows] & np.uint16((1 << SLOWDOWN_MINUTES) - 1)].astype(np.float64)
        is_known = ~np.isnan(seen.slow) & ((count > 0) | (known >= 60 * SLOWDOWN_MINUTES))
        return np.where(is_known, count, np.nan)

    def _nvlinks(self, seen: GpuObservation, rows: Column) -> Column:
        """Return the active NVLinks a day before, with an error of at most an hour.

        Until a day is known, a finding of an earlier process states the number.
        """
        cells = self._subjects.columns["nvlinks"]
        known = ~np.isnan(seen.nvlinks)
        cells[rows[known], self._hour % _HOURS] = np.minimum(seen.nvlinks[known], 254).astype(np.uint8) + 1
        before = cells[rows, (self._hour - DAY_SECONDS // HOUR_SECONDS) % _HOURS].astype(np.float64)
        return np.where(before > 0, before - 1, seen.nvlinks_before)

    def _held(self, seen: GpuObservation, rows: Column) -> Column:
        """Return the time since the newest holding began: as reported, or since the GPU was last seen without one.

        If the GPU was always held, the time is unknown until it is an hour.
        """
        second, start = self._subjects.second, self._subjects.columns["held_second"]
        is_held, is_free = seen.held == 1, seen.held == 0
        begins = is_held & ~self._has(rows, _HELD)
        self._assign(rows, _HELD_START, np.where(begins, self._has(rows, _FREE), self._has(rows, _HELD_START)))
        start[rows[begins]] = second
        self._assign(rows, _HELD, is_held)
        self._assign(rows, _FREE, is_free)
        seconds = (second - start[rows]).astype(np.float64)
        seconds = np.where(self._has(rows, _HELD_START) | (seconds >= HOUR_SECONDS), seconds, np.nan)
        reported = np.maximum(0, seen.now - seen.held_since) / NANOS
        return np.where(is_held, np.where(seen.held_since > 0, reported, seconds), np.nan)

    def _has(self, rows: Column, flag: int) -> Column:
        return np.asarray((self._subjects.columns["flags"][rows] & np.uint8(flag)) != 0)

    def _set(self, rows: Column, flag: int) -> None:
        self._subjects.columns["flags"][rows] |= np.uint8(flag)

    def _assign(self, rows: Column, flag: int, values: Column) -> None:
        flags = self._subjects.columns["flags"]
        flags[rows] = np.where(values, flags[rows] | np.uint8(flag), flags[rows] & np.uint8(255 - flag))


class MachineMemory:
    """History of the machines of a cluster."""

    def __init__(self) -> None:
        self._subjects = Subjects(_MESSAGES.columns, (("messages", np.uint32),))

    def judge(self, keys: Column, lost_messages: CounterReading, second: int) -> Column:
        """Record a counter of lost messages of the kernel log, and return its increase in the last hour.

        Args:
            keys: hash of the key of each machine.
            lost_messages: the counter.
            second: time of the judgement by the memory's clock.
        """
        rows = self._subjects.judge(keys, second)
        increase, _ = _MESSAGES.compare(self._subjects, rows, lost_messages)
        self._subjects.sums["messages"].add(rows, increase)
        return np.where(np.isnan(lost_messages.value), np.nan, self._subjects.hour("messages", rows))

    @property
    def bytes(self) -> int:
        """Size of the state."""
        return self._subjects.bytes


class ClusterMemory:
    """History of the machines and GPUs of a cluster.

    Attributes:
        gpus, machines: the histories.
        second: time of the newest judgement.
    """

    def __init__(self) -> None:
        self.gpus = GpuMemory()
        self.machines = MachineMemory()
        self.second = 0


class FactMemory:
    """Histories of all clusters between judgements.

    Attributes:
        earlier: findings that were open when the hub started.
        class_maxima: largest number of GPUs of each class of machines; see `class_maxima`.
        readers: numbers of readers.
    """

    def __init__(self) -> None:
        self.earlier = EarlierFindings()
        self.class_maxima: dict[str, int] = {}
        self.readers = ReaderNumbers()
        self._clock = MemoryClock()
        self._clusters: dict[str, ClusterMemory] = {}
        self._second = 0

    def begin(self, now: int) -> None:
        """Begin a judgement at an instant, nanoseconds since 1970; drop clusters that were not judged for a day."""
        self._second = self._clock.second(now)
        oldest = self._second - DAY_SECONDS
        self._clusters = {name: one for name, one in self._clusters.items() if one.second > oldest}

    def cluster(self, name: str) -> ClusterMemory:
        """Return the history of a cluster for the judgement that has begun."""
        found = self._clusters.setdefault(name, ClusterMemory())
        found.second = self._second
        return found

    @property
    def bytes(self) -> int:
        """Size of the arrays."""
        return sum(one.gpus.bytes + one.machines.bytes for one in self._clusters.values())


def _counted(cells: Column, rows: Column, is_sample: Column, is_equal: Column) -> Column:
    """Count up equal samples, restart at a different one; return the counts."""
    counts = np.where(is_equal, np.minimum(cells[rows], 65534) + 1, np.where(is_sample, 0, cells[rows]))
    cells[rows] = counts
    return counts
