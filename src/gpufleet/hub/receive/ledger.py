"""Which batches the hub holds: everything it has acknowledged, flushed or not.

One run of sequence numbers: which are held, and whether a body can be of the same sender as those. Pure.

Two machines can count under one epoch: a copied disk image has the spool in it, a machine that was set back to a
snapshot has an older one. A number that is held says nothing then of the body that comes under it. So a number is only
taken for a repetition if the body is known to be the same, and a process whose numbers lie among those of another
process of the sender is another machine's: a sender's processes follow one another, and so do their numbers.

The order of a sender's reports, by the hub's clock: the sender's may be set back, and late word is not new. Pure.
"""

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Self

import msgspec

from gpufleet.hub.receive.limits import Crowd
from gpufleet.hub.receive.sequences import Digests, Intervals
from gpufleet.model.stored.ledger import Held, ProcessSpan, Ranges, SequenceKey
from gpufleet.model.wire.batch import WireBatch

STEP_NS = 1000
"""Between the places of two neighbouring numbers: so many instants of one batch can be told apart."""

GAPS_KEPT = 64
"""Gaps whose ends are remembered, the highest. What still arrives for a lower one is older than everything."""

LONGEST_GAP = 10**9
"""Numbers of one gap that have a place of their own."""


class Order:
    """Places of the numbers of one run: they grow with the numbers, in whatever order those arrive.

    A number in a gap lies below the one that ended the gap, by one step a number.

    Attributes:
        gaps: numbers that ended a gap, with their places, lowest first.
        top: the highest number with its place, or None.
    """

    def __init__(self, gaps: Ranges = (), top: tuple[int, int] | None = None) -> None:
        """Take what an earlier order's attributes were."""
        self.gaps = gaps
        self.top = top

    def place(self, number: int, at: int | None) -> int:
        """Return a number's place, in nanoseconds since 1970, and remember it if it is the highest.

        Args:
            number: of the run.
            at: the least place that news may have, or None for backlog.
        """
        if self.top is None or number > self.top[0]:
            return self._append(number, at)
        upper = bisect.bisect_left(self.gaps, (number, 0))
        if upper == len(self.gaps):
            return self.top[1]
        end, place = self.gaps[upper]
        if upper == 0 and len(self.gaps) == GAPS_KEPT:
            return min(number, LONGEST_GAP) * STEP_NS  # perhaps of a gap that was forgotten
        return max(1, place - min(end - number, LONGEST_GAP) * STEP_NS)

    def _append(self, number: int, at: int | None) -> int:
        if self.top is None:
            ahead, place = number, at or min(number, LONGEST_GAP) * STEP_NS
        else:
            ahead = number - self.top[0]
            place = max(at or 0, self.top[1] + min(ahead, LONGEST_GAP) * STEP_NS)
        if ahead > 1:
            self.gaps = (*self.gaps, (number, place))[-GAPS_KEPT:]
        self.top = (number, place)
        return place


PROCESSES_KEPT = 16
"""Spans of a sender's processes that are remembered, of the highest numbers."""


class Run:
    """The run of one sender and epoch."""

    def __init__(self, held: Held | None = None) -> None:
        """Take what an earlier run's `held` was."""
        held = held or Held(ranges=())
        self.numbers = Intervals(held.ranges)
        self._digests = Digests(held.digests)
        self._processes = held.processes
        self.order = Order(held.gap_ends, held.top)

    @property
    def held(self) -> Held:
        """Everything that is remembered."""
        return Held(
            ranges=self.numbers.ranges,
            digests=self._digests.content,
            processes=self._processes,
            gap_ends=self.order.gaps,
            top=self.order.top,
        )

    def copy(self) -> Self:
        """Return another run that remembers the same."""
        return type(self)(self.held)

    def hold(self, batch: WireBatch, digest: int, received_at: int) -> None:
        """Remember a batch; `received_at` by the hub's clock, nanoseconds since 1970."""
        self.numbers.add(batch.seq)
        self._digests.add(batch.seq, digest, received_at, self.numbers)
        self._processes = _with(self._processes, batch)

    def has(self, seq: int, digest: int) -> bool:
        """Tell whether this very body is held under the number."""
        return seq in self.numbers and self._digests.get(seq) == digest

    def contradiction(self, batch: WireBatch) -> str:
        """Say why a body that is not held cannot follow what is; empty where it can."""
        if batch.seq in self.numbers:
            if self._digests.get(batch.seq) is None:
                return f"number {batch.seq} came long ago, and nothing shows that this is the same batch"
            return f"number {batch.seq} came with another content"
        other = _overlapped(self._processes, batch)
        if other is None:
            return ""
        return f"number {batch.seq} is among the numbers {other.first} to {other.last} of another process"


def _overlapped(processes: tuple[ProcessSpan, ...], batch: WireBatch) -> ProcessSpan | None:
    """Return another process that spoke between this process's numbers, or in the middle of whose this one speaks."""
    if batch.heartbeat is None:
        return None
    started = batch.heartbeat.started_at
    own = next((one for one in processes if one.started_at == started), None)
    first, last = (min(own.first, batch.seq), max(own.last, batch.seq)) if own else (batch.seq, batch.seq)
    others = (one for one in processes if one.started_at != started)
    return next((one for one in others if one.first <= last and first <= one.last), None)


def _with(processes: tuple[ProcessSpan, ...], batch: WireBatch) -> tuple[ProcessSpan, ...]:
    if batch.heartbeat is None:
        return processes
    started, seq = batch.heartbeat.started_at, batch.seq
    for place, one in enumerate(processes):
        if one.started_at == started:
            if one.first <= seq <= one.last:
                return processes
            wider = msgspec.structs.replace(one, first=min(one.first, seq), last=max(one.last, seq))
            return (*processes[:place], wider, *processes[place + 1 :])
    return tuple(sorted((*processes, ProcessSpan(started, seq, seq)), key=lambda one: one.first))[-PROCESSES_KEPT:]


MAX_SENDERS = 10_000
"""Senders that one cluster may have, unless configured; a sender takes about 3 kB of memory, an epoch more 2 kB."""

MAX_RANGES = 4096
"""Ranges that one run of sequence numbers may fall into; a sender with more holes is not counting."""


def key_of(batch: WireBatch) -> SequenceKey:
    """Return the run of numbers that a batch is of."""
    return SequenceKey(batch.cluster, batch.sender, batch.epoch)


class Ledger:
    """Runs of sequence numbers by sender and epoch. Lives on one thread.

    An epoch is random, and no cluster knows another's. A sender that counts under one in several clusters was moved
    between them with its spool, and what came to one of them is not missing in the others.
    """

    def __init__(self, held: Mapping[SequenceKey, Held], *, max_senders: int = MAX_SENDERS) -> None:
        """Take what is held already, and how many senders one cluster may have."""
        self._runs: dict[SequenceKey, Run] = {}
        self._crowd = Crowd(max_senders)
        self._missing: Counter[str] = Counter()
        self._first: dict[tuple[str, str], SequenceKey] = {}  # of each sender and epoch the run that was known first
        self._moved: dict[tuple[str, str], list[SequenceKey]] = {}  # all runs of those that several clusters know
        for key, one in held.items():
            self.replace(key, Run(one))
        self._given_up: set[SequenceKey] = set()

    def holds(self, key: SequenceKey, seq: int) -> bool:
        """Tell whether a batch of that number was acknowledged."""
        run = self._runs.get(key)
        return run is not None and seq in run.numbers

    def has(self, key: SequenceKey, seq: int, digest: int) -> bool:
        """Tell whether this very body was acknowledged."""
        run = self._runs.get(key)
        return run is not None and run.has(seq, digest)

    def knows(self, key: SequenceKey) -> bool:
        """Tell whether any batch of that run was acknowledged."""
        return key in self._runs

    def contradiction(self, key: SequenceKey, batch: WireBatch) -> str:
        """Say why a body that is not held cannot be taken under its epoch; empty where it can."""
        if key in self._given_up:
            return "the next hub knows the epoch from another machine"
        run = self._runs.get(key)
        return "" if run is None else run.contradiction(batch)

    def hold(self, key: SequenceKey, batch: WireBatch, digest: int, received_at: int) -> None:
        """Remember a batch; `received_at` by the hub's clock, nanoseconds since 1970."""
        run = self._runs.get(key)
        if run is None:
            run = Run()
            self.replace(key, run)
        if not self._moved:  # nearly always, and this is asked for every batch
            missing = run.numbers.missing
            run.hold(batch, digest, received_at)
            self._missing[key.cluster] += run.numbers.missing - missing
            return
        before = self._lacking(key)
        run.hold(batch, digest, received_at)
        self._recount(before, key)

    def run(self, key: SequenceKey) -> Run:
        """Return a copy of one run."""
        run = self._runs.get(key)
        return Run() if run is None else run.copy()

    def replace(self, key: SequenceKey, run: Run) -> None:
        """Put a run in the place of what is known of it."""
        if key not in self._runs:
            self._crowd.add(key)
            first = self._first.setdefault((key.sender, key.epoch), key)
            if first != key:
                self._moved.setdefault((key.sender, key.epoch), [first]).append(key)
        before = self._lacking(key)
        self._runs[key] = run
        self._recount(before, key)

    def refusal(self, key: SequenceKey, coming: int) -> tuple[str, str]:
        """Return the field and the words for which a run that is not known cannot be held; both empty where it can.

        `coming` others of its cluster are on their way to be held.
        """
        return self._crowd.refusal(key, coming)

    def give_up(self, key: SequenceKey) -> None:
        """Take nothing more under an epoch."""
        self._given_up.add(key)

    def is_full(self, key: SequenceKey, seq: int) -> bool:
        """Tell whether another hole would pass the bound."""
        run = self._runs.get(key)
        if run is None:
            return False
        numbers = run.numbers
        return numbers.range_count >= MAX_RANGES and seq - 1 not in numbers and seq + 1 not in numbers

    def ranges(self, key: SequenceKey) -> Ranges:
        """Return the numbers that are held of one run."""
        run = self._runs.get(key)
        return () if run is None else run.numbers.ranges

    def runs(self) -> Iterator[tuple[SequenceKey, Intervals]]:
        """Go through the numbers of every run."""
        return ((key, run.numbers) for key, run in self._runs.items())

    def runs_of(self, cluster: str, sender: str) -> list[tuple[str, Intervals, Intervals]]:
        """Return epoch, held and `known` numbers of every run of a sender."""
        keys = [SequenceKey(cluster, sender, epoch) for epoch in self._crowd.epochs(cluster, sender)]
        return [(key.epoch, self._runs[key].numbers, self.known(key)) for key in keys]

    def known(self, key: SequenceKey) -> Intervals:
        """Return the numbers of one run that are held, and those below its highest that came to other clusters."""
        run = self._runs.get(key)
        if run is None:
            return Intervals()
        moved = self._moved.get((key.sender, key.epoch))
        if moved is None:
            return run.numbers
        highest = run.numbers.highest
        others = [range_ for one in moved if one != key for range_ in self.ranges(one)]
        below = [(start, min(end, highest)) for start, end in others if start <= highest]
        return Intervals([*run.numbers.ranges, *below])

    def _lacking(self, key: SequenceKey) -> list[tuple[str, int]]:
        """Return the cluster of a run and how many numbers are missing of it, and the same of it in other clusters."""
        runs = self._moved.get((key.sender, key.epoch), (key,))
        return [(one.cluster, self.known(one).missing) for one in runs]

    def _recount(self, before: list[tuple[str, int]], key: SequenceKey) -> None:
        for (cluster, had), (_, has) in zip(before, self._lacking(key), strict=True):
            self._missing[cluster] += has - had

    @property
    def missing(self) -> int:
        """Batches lost or still on the way, over all runs."""
        return self._missing.total()

    def missing_by_cluster(self) -> dict[str, int]:
        """Return the same by cluster."""
        return dict(self._missing)
