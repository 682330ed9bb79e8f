"""Events of GPUs within a window, as columns: XIDs since the last reset, slowdowns, ECC errors. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from gpufleet.fleet.facts.metrics import BACK_SECONDS, EVENT_SECONDS, FALLEN_OFF, RESTART_EVENTS, is_loss, reset_after
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.rules.xids import FATAL_ACTIONS
from gpufleet.model.event import EventKind
from gpufleet.model.stored.readings import EventCount
from gpufleet.model.time import NANOS
from gpufleet.model.xid import xid

HOUR_SECONDS, SLOWDOWN_SECONDS = 3600.0, 600.0


class GpuEvents(msgspec.Struct, frozen=True):
    """Events of the GPUs of a cluster.

    Attributes:
        xids: GPU to XID to its number since the last reset, within `EVENT_SECONDS`.
        fell_off: GPUs with XID 79 since their last reset.
        fatal: number of XIDs of each machine that need a reset, a reboot or a repair, within `EVENT_SECONDS`.
        slowdowns: number of starts of slowdowns of each GPU within `SLOWDOWN_SECONDS`.
        uncorrected: number of uncorrected ECC errors of each GPU in the last hour.
        restarted_at: newest boot, or event of each GPU or its driver, after which its counters can start again,
            nanoseconds since 1970; 0 if there was none.
    """

    xids: Mapping[int, Mapping[int, int]]
    fell_off: frozenset[int]
    fatal: Column
    slowdowns: Column
    uncorrected: Column
    restarted_at: Column


class EventSubjects(msgspec.Struct, frozen=True):
    """Subjects of the events of a cluster.

    Attributes:
        gpu_of: returns the position of a GPU by machine id and view key, also by its PCI address: the GPU that is there
            now. None if unknown.
        machine_of: position of each GPU's machine.
        machines: machine id to position.
        booted_at: last boot of each machine, nanoseconds since 1970; 0 if unknown.
        others_until: newest measurement of another GPU in the slot of each GPU, nanoseconds since 1970; 0 or `NONE` if
            that is unknown. Events until then can be of the other GPU.
        works_at: newest measurement in which the driver of each GPU found it `ok`, nanoseconds since 1970; 0 if there
            is none.
    """

    gpu_of: Callable[[str, str], int | None]
    machine_of: Column
    machines: Mapping[str, int]
    booted_at: Column
    others_until: Column
    works_at: Column


class EventWindow:
    """Numbers of events since an instant.

    Events far in the future do not count: the clock of their machine is wrong.
    """

    def __init__(self, now: int) -> None:
        """Take the present, nanoseconds since 1970."""
        self._oldest = now - int(EVENT_SECONDS * NANOS)
        self._latest = now + int(HOUR_SECONDS * NANOS)
        self.now = now

    def count(self, one: EventCount, start: int | None = None) -> int:
        """Return the number of events since `start`, or in the whole window; a lower bound if not all are listed."""
        since = self._oldest if start is None else max(start, self._oldest)
        listed = sum(since <= at <= self._latest for at in one.at)
        return one.count if since == self._oldest and listed == len(one.at) else listed

    def count_within(self, one: EventCount, seconds: float, start: int) -> int:
        """Return the number of events of the last seconds, and not before `start`."""
        return self.count(one, max(start, self.now - int(seconds * NANOS)))

    def times(self, one: EventCount, start: int = 0) -> list[int]:
        """Return the times of the events since `start`."""
        return [at for at in one.at if start <= at <= self._latest]


def gpu_events(counts: Sequence[EventCount], subjects: EventSubjects, now: int) -> GpuEvents:
    """Return the events of the GPUs of a cluster.

    Args:
        counts: events of the kinds `FACT_EVENTS`, of the last `EVENT_SECONDS`.
        subjects: GPUs and machines of the cluster.
        now: nanoseconds since 1970.
    """
    window = EventWindow(now)
    own_from = subjects.others_until.astype(np.int64) + 1
    reset_from, restarted_at = _resets(counts, subjects, window, own_from)
    xids_from = np.maximum(reset_from + 1, own_from)
    slowdowns, uncorrected = np.zeros(len(own_from)), np.zeros(len(own_from))
    fatal = np.zeros(len(subjects.booted_at))
    xids: dict[int, dict[int, int]] = {}
    for one in counts:
        gpu, machine = subjects.gpu_of(one.machine, one.view), subjects.machines.get(one.machine)
        if one.kind == EventKind.XID and machine is not None and xid(one.code).action in FATAL_ACTIONS:
            fatal[machine] += window.count(one)
        if gpu is None:
            continue
        if one.kind == EventKind.XID:
            number = window.count(one, int(xids_from[gpu]))
            if number:
                codes = xids.setdefault(gpu, {})
                codes[one.code] = codes.get(one.code, 0) + number
        elif one.kind == EventKind.THROTTLE_STARTED:
            slowdowns[gpu] += window.count_within(one, SLOWDOWN_SECONDS, int(own_from[gpu]))
        elif one.kind == EventKind.ECC_UNCORRECTED:
            uncorrected[gpu] += max(0, one.code) * window.count_within(one, HOUR_SECONDS, int(own_from[gpu]))
    fell_off = frozenset(gpu for gpu, codes in xids.items() if FALLEN_OFF in codes)
    return GpuEvents(xids, fell_off, fatal, slowdowns, uncorrected, restarted_at)


def _resets(
    counts: Iterable[EventCount], subjects: EventSubjects, window: EventWindow, own_from: Column
) -> tuple[Column, Column]:
    """Return the time after which each GPU was last reset, itself or with its machine or driver, and `restarted_at`.

    A GPU that works after it fell off the bus, was lost or needed a reset had one since, also if no agent ran then.
    """
    booted_at, gpus = subjects.booted_at.astype(np.int64), len(subjects.machine_of)
    of_machine, of_gpu = booted_at.copy(), np.zeros(gpus, np.int64)
    machine_restarts, gpu_restarts = booted_at.copy(), np.zeros(gpus, np.int64)
    for one in counts:
        gpu, machine = subjects.gpu_of(one.machine, one.view), subjects.machines.get(one.machine)
        if gpu is not None:
            times = window.times(one, int(own_from[gpu]))
            of_gpu[gpu] = max(of_gpu[gpu], *_proven(one, times, int(subjects.works_at[gpu])), 0)
            if one.kind in RESTART_EVENTS:
                gpu_restarts[gpu] = max(gpu_restarts[gpu], *times, 0)
        elif not one.view and machine is not None and one.kind in RESTART_EVENTS:
            times = window.times(one)
            of_machine[machine] = max(of_machine[machine], *_proven(one, times, 0), 0)
            machine_restarts[machine] = max(machine_restarts[machine], *times, 0)
    reset_from = np.maximum(of_gpu, of_machine[subjects.machine_of])
    return reset_from, np.maximum.reduce([reset_from, gpu_restarts, machine_restarts[subjects.machine_of]])


def _proven(one: EventCount, times: Sequence[int], works_at: int) -> list[int]:
    """Return the times after which events of one kind prove a reset."""
    if is_loss(one.kind, one.code):
        return [at for at in times if at <= works_at - BACK_SECONDS * NANOS]
    return [after for at in times if (after := reset_after(one.kind, one.code, at)) is not None]
