"""Ledger of the batches held by the hub: every acknowledged sequence number, flushed or not. Pure.

Two machines can use the same epoch: a copied disk image contains the spool, and a machine restored from a snapshot has
an older spool. A held number then does not prove that a new body with it is a duplicate. Two rules detect this:

- A number is a duplicate only if the digests of the bodies match.
- The processes of one sender run one after the other, and so do their numbers. A process whose numbers lie among those
  of another process of the sender runs on another machine.
"""

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Self

import msgspec

from gpufleet.hub.receive.limits import SenderQuota
from gpufleet.hub.receive.sequences import BodyDigests, Intervals, missing_of
from gpufleet.model.stored.ledger import ProcessSpan, Ranges, SequenceKey, SequenceState
from gpufleet.model.wire.batch import WireBatch

STEP_NS = 1000
"""Distance in nanoseconds between the places of consecutive numbers, and so the distinct instants within a batch."""

MAX_GAPS = 64
"""Number of gap ends kept, highest first. A batch that arrives for a lower gap is placed before all others."""

MAX_GAP = 10**9
"""Numbers of one gap that get distinct places."""


class ReportOrder:
    """Order of a sender's reports as places in time, by the hub's clock, because the sender's clock may be set back.

    Places increase with the numbers, in whatever order the batches arrive. A number in a gap is placed below the number
    that ended the gap, one step for each number between them.

    Attributes:
        gaps: numbers that ended a gap, with their places, lowest first.
        top: the highest number with its place, or None.
    """

    def __init__(self, gaps: Ranges = (), top: tuple[int, int] | None = None) -> None:
        """Restore the attributes of an earlier order."""
        self.gaps = gaps
        self.top = top

    def place(self, number: int, at: int | None) -> int:
        """Return a number's place in nanoseconds since 1970, and record it if the number is the highest.

        Args:
            number: of the run.
            at: lower bound on the place of a current report, or None for backlog.
        """
        if self.top is None or number > self.top[0]:
            return self._append(number, at)
        upper = bisect.bisect_left(self.gaps, (number, 0))
        if upper == len(self.gaps):
            return self.top[1]
        end, place = self.gaps[upper]
        if upper == 0 and len(self.gaps) == MAX_GAPS:
            return min(number, MAX_GAP) * STEP_NS  # possibly in a gap that is no longer kept
        return max(1, place - min(end - number, MAX_GAP) * STEP_NS)

    def _append(self, number: int, at: int | None) -> int:
        if self.top is None:
            ahead, place = number, at or min(number, MAX_GAP) * STEP_NS
        else:
            ahead = number - self.top[0]
            place = max(at or 0, self.top[1] + min(ahead, MAX_GAP) * STEP_NS)
        if ahead > 1:
            self.gaps = (*self.gaps, (number, place))[-MAX_GAPS:]
        self.top = (number, place)
        return place


MAX_PROCESSES = 16
"""Number of process spans kept for a sender, those with the highest numbers."""


class SequenceRun:
    """Sequence numbers held of one sender and epoch."""

    def __init__(self, held: SequenceState | None = None) -> None:
        """Restore the `held` of an earlier run."""
        held = held or SequenceState(ranges=())
        self.numbers = Intervals(held.ranges)
        self._digests = BodyDigests(held.digests)
        self._processes = held.processes
        self.order = ReportOrder(held.gap_ends, held.top)

    @property
    def held(self) -> SequenceState:
        """State to store, from which an equal run can be created."""
        return SequenceState(
            ranges=self.numbers.ranges,
            digests=self._digests.content,
            processes=self._processes,
            gap_ends=self.order.gaps,
            top=self.order.top,
        )

    def copy(self) -> Self:
        """Return an independent copy."""
        return type(self)(self.held)

    def hold(self, batch: WireBatch, digest: int, received_at: int) -> None:
        """Record a batch; `received_at` is by the hub's clock in nanoseconds since 1970."""
        self.numbers.add(batch.seq)
        self._digests.add(batch.seq, digest, received_at, self.numbers)
        self._processes = _with_batch(self._processes, batch)

    def has(self, seq: int, digest: int) -> bool:
        """Return whether a body with this number and digest is held."""
        return seq in self.numbers and self._digests.get(seq) == digest

    def is_full(self, seq: int) -> bool:
        """Return whether the number would open a gap beyond `MAX_RANGES`."""
        numbers = self.numbers
        return numbers.range_count >= MAX_RANGES and seq - 1 not in numbers and seq + 1 not in numbers

    def epoch_conflict(self, batch: WireBatch) -> str:
        """Return why a new batch cannot belong to this sender and epoch, or an empty text."""
        if batch.seq in self.numbers:
            if self._digests.get(batch.seq) is None:
                return f"number {batch.seq} came long ago, and its digest is no longer known"
            return f"number {batch.seq} came with another content"
        other = _overlapping_process(self._processes, batch)
        if other is None:
            return ""
        return f"number {batch.seq} is among the numbers {other.first} to {other.last} of another process"


def _overlapping_process(processes: tuple[ProcessSpan, ...], batch: WireBatch) -> ProcessSpan | None:
    """Return another process of the sender whose range of numbers overlaps that of the batch's process, or None."""
    if batch.heartbeat is None:
        return None
    started = batch.heartbeat.started_at
    own = next((one for one in processes if one.started_at == started), None)
    first, last = (min(own.first, batch.seq), max(own.last, batch.seq)) if own else (batch.seq, batch.seq)
    others = (one for one in processes if one.started_at != started)
    return next((one for one in others if one.first <= last and first <= one.last), None)


def _with_batch(processes: tuple[ProcessSpan, ...], batch: WireBatch) -> tuple[ProcessSpan, ...]:
    if batch.heartbeat is None:
        return processes
    started, seq = batch.heartbeat.started_at, batch.seq
    for place, one in enumerate(processes):
        if one.started_at == started:
            if one.first <= seq <= one.last:
                return processes
            wider = msgspec.structs.replace(one, first=min(one.first, seq), last=max(one.last, seq))
            return (*processes[:place], wider, *processes[place + 1 :])
    return tuple(sorted((*processes, ProcessSpan(started, seq, seq)), key=lambda one: one.first))[-MAX_PROCESSES:]


MAX_SENDERS = 10_000
"""Default limit on the senders of one cluster. A sender takes about 3 kB of memory, each further epoch 2 kB."""

MAX_RANGES = 4096
"""Maximum number of ranges in one run. A sender with more gaps does not number its batches correctly."""


def key_of(batch: WireBatch) -> SequenceKey:
    """Return the key of a batch's sequence run."""
    return SequenceKey(batch.cluster, batch.sender, batch.epoch)


class Ledger:
    """Sequence runs by sender and epoch. Use it from one thread.

    An epoch is random and never shared between clusters. So a sender that uses one epoch in several clusters was moved
    between them with its spool, and the numbers received by one cluster are not missing in the others.
    """

    def __init__(self, held: Mapping[SequenceKey, SequenceState], *, max_senders: int = MAX_SENDERS) -> None:
        """Restore stored runs; `max_senders` is the limit for each cluster."""
        self._runs: dict[SequenceKey, SequenceRun | SequenceState] = dict(held)  # states until the first use
        self._quota = SenderQuota(max_senders)
        self._missing: Counter[str] = Counter()
        self._missing_of: Counter[tuple[str, str]] = Counter()  # by cluster and sender, without zeros
        self._first: dict[tuple[str, str], SequenceKey] = {}  # by sender and epoch, the first known run
        self._moved: dict[tuple[str, str], list[SequenceKey]] = {}  # by sender and epoch, runs in several clusters
        for key, state in held.items():
            self._register(key)
            self._count_missing(key, missing_of(state.ranges))
        for moved in self._moved.values():
            for key in moved:
                self._count_missing(key, self.known(key).missing - self._run_of(key).numbers.missing)
        self._given_up: set[SequenceKey] = set()

    def holds(self, key: SequenceKey, seq: int) -> bool:
        """Return whether a batch with this number was acknowledged."""
        run = self.find(key)
        return run is not None and seq in run.numbers

    def find(self, key: SequenceKey) -> SequenceRun | None:
        """Return one run to query, or None. Change it through the ledger only."""
        run = self._runs.get(key)
        if isinstance(run, SequenceState):
            run = self._runs[key] = SequenceRun(run)
        return run

    def knows(self, key: SequenceKey) -> bool:
        """Return whether any batch of the run was acknowledged."""
        return key in self._runs

    def epoch_conflict(self, key: SequenceKey, batch: WireBatch) -> str:
        """Return why a new batch cannot be accepted under its epoch, or an empty text."""
        if key in self._given_up:
            return "another machine uses the epoch at the next hub"
        run = self.find(key)
        return "" if run is None else run.epoch_conflict(batch)

    def hold(self, key: SequenceKey, batch: WireBatch, digest: int, received_at: int) -> None:
        """Record a batch; `received_at` is by the hub's clock in nanoseconds since 1970."""
        run = self.find(key)
        if run is None:
            run = SequenceRun()
            self.replace(key, run)
        if not self._moved:  # nearly always; a fast path, as this runs for every batch
            missing = run.numbers.missing
            run.hold(batch, digest, received_at)
            if run.numbers.missing != missing:
                self._count_missing(key, run.numbers.missing - missing)
            return
        before = self._missing_counts(key)
        run.hold(batch, digest, received_at)
        self._recount(before, key)

    def run(self, key: SequenceKey) -> SequenceRun:
        """Return a copy of one run."""
        run = self.find(key)
        return SequenceRun() if run is None else run.copy()

    def replace(self, key: SequenceKey, run: SequenceRun) -> None:
        """Replace the stored state of a run."""
        if key not in self._runs:
            self._register(key)
        before = self._missing_counts(key)
        self._runs[key] = run
        self._recount(before, key)

    def refusal(self, key: SequenceKey, coming: int) -> tuple[str, str]:
        """Return the offending field and a message if a new run exceeds a limit, else two empty strings.

        `coming` is the number of other new runs of its cluster that are being written.
        """
        return self._quota.refusal(key, coming)

    def give_up(self, key: SequenceKey) -> None:
        """Reject all further batches of a run."""
        self._given_up.add(key)

    def ranges(self, key: SequenceKey) -> Ranges:
        """Return the ranges of numbers held of one run."""
        run = self.find(key)
        return () if run is None else run.numbers.ranges

    def runs(self) -> Iterator[tuple[SequenceKey, Intervals]]:
        """Iterate over the held numbers of every run."""
        return ((key, self._run_of(key).numbers) for key in self._runs)

    def runs_of(self, cluster: str, sender: str) -> list[tuple[str, Intervals, Intervals]]:
        """Return epoch, held numbers and `known` numbers of every run of a sender."""
        keys = [SequenceKey(cluster, sender, epoch) for epoch in self._quota.epochs(cluster, sender)]
        return [(key.epoch, self._run_of(key).numbers, self.known(key)) for key in keys]

    def known(self, key: SequenceKey) -> Intervals:
        """Return the held numbers of one run and those below its highest that other clusters received."""
        run = self.find(key)
        if run is None:
            return Intervals()
        moved = self._moved.get((key.sender, key.epoch))
        if moved is None:
            return run.numbers
        highest = run.numbers.highest
        others = [range_ for one in moved if one != key for range_ in self.ranges(one)]
        below = [(start, min(end, highest)) for start, end in others if start <= highest]
        return Intervals([*run.numbers.ranges, *below])

    def _run_of(self, key: SequenceKey) -> SequenceRun:
        """Return a known run."""
        run = self.find(key)
        assert run is not None
        return run

    def _register(self, key: SequenceKey) -> None:
        """Count a new run for its limits, and find it among the runs of its sender in other clusters."""
        self._quota.add(key)
        first = self._first.setdefault((key.sender, key.epoch), key)
        if first != key:
            self._moved.setdefault((key.sender, key.epoch), [first]).append(key)

    def _missing_counts(self, key: SequenceKey) -> list[tuple[SequenceKey, int]]:
        """Return the number of missing batches of a run and of its counterparts in other clusters."""
        runs = self._moved.get((key.sender, key.epoch), (key,))
        return [(one, self.known(one).missing) for one in runs]

    def _recount(self, before: list[tuple[SequenceKey, int]], key: SequenceKey) -> None:
        for (run, old), (_, new) in zip(before, self._missing_counts(key), strict=True):
            self._count_missing(run, new - old)

    def _count_missing(self, key: SequenceKey, more: int) -> None:
        if not more:
            return
        self._missing[key.cluster] += more
        who = key.cluster, key.sender
        self._missing_of[who] += more
        if not self._missing_of[who]:
            del self._missing_of[who]

    @property
    def missing(self) -> int:
        """Batches lost or not yet received, over all runs."""
        return self._missing.total()

    def missing_by_cluster(self) -> dict[str, int]:
        """Return `missing` by cluster."""
        return dict(self._missing)

    def missing_by_sender(self) -> dict[tuple[str, str], int]:
        """Return `missing` by cluster and sender, without senders that miss none."""
        return dict(self._missing_of)
