"""Which batches the hub holds: everything it has acknowledged, flushed or not."""

from collections.abc import Iterator, Mapping

from gpufleet.hub.intervals import Intervals
from gpufleet.hub.run import Run
from gpufleet.model.ledger import Held, Ranges, SequenceKey
from gpufleet.model.wire import WireBatch

MAX_RANGES = 4096
"""Ranges that one run of sequence numbers may fall into; a sender with more holes is not counting."""


def key_of(batch: WireBatch) -> SequenceKey:
    """Return the run of numbers that a batch is of."""
    return SequenceKey(batch.cluster, batch.sender, batch.epoch)


class Ledger:
    """Runs of sequence numbers by sender and epoch. Lives on one thread."""

    def __init__(self, held: Mapping[SequenceKey, Held]) -> None:
        self._runs = {key: Run(one) for key, one in held.items()}
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
            run = self._runs[key] = Run()
        run.hold(batch, digest, received_at)

    def run(self, key: SequenceKey) -> Run:
        """Return a copy of one run."""
        run = self._runs.get(key)
        return Run() if run is None else run.copy()

    def replace(self, key: SequenceKey, run: Run) -> None:
        """Put a run in the place of what is known of it."""
        self._runs[key] = run

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

    @property
    def missing(self) -> int:
        """Batches lost or still on the way, over all runs."""
        return sum(run.numbers.missing for run in self._runs.values())
