"""Which batches the hub holds: everything it has acknowledged, flushed or not."""

from collections import Counter
from collections.abc import Iterator, Mapping

from gpufleet.hub.crowd import Crowd
from gpufleet.hub.intervals import Intervals
from gpufleet.hub.run import Run
from gpufleet.model.ledger import Held, Ranges, SequenceKey
from gpufleet.model.wire import WireBatch

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
