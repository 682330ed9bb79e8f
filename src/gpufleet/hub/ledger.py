"""Which batches the hub holds: everything it has acknowledged, flushed or not."""

from collections.abc import Iterator, Mapping

from gpufleet.hub.intervals import Intervals
from gpufleet.model.ledger import Ranges, SequenceKey

MAX_RANGES = 4096
"""Ranges that one run of sequence numbers may fall into; a sender with more holes is not counting."""


class Ledger:
    """Sets of sequence numbers by sender and epoch. Lives on one thread."""

    def __init__(self, held: Mapping[SequenceKey, Ranges]) -> None:
        self._held = {key: Intervals(ranges) for key, ranges in held.items()}

    def holds(self, key: SequenceKey, seq: int) -> bool:
        """Tell whether the batch was acknowledged."""
        held = self._held.get(key)
        return held is not None and seq in held

    def hold(self, key: SequenceKey, seq: int) -> bool:
        """Remember a batch; returns whether it was new."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = Intervals()
        return held.add(seq)

    def is_full(self, key: SequenceKey, seq: int) -> bool:
        """Tell whether another hole would pass the bound."""
        held = self._held.get(key)
        return held is not None and held.range_count >= MAX_RANGES and seq - 1 not in held and seq + 1 not in held

    def ranges(self, key: SequenceKey) -> Ranges:
        """Return what is held of one run."""
        held = self._held.get(key)
        return () if held is None else held.ranges

    def runs(self) -> Iterator[tuple[SequenceKey, Intervals]]:
        """Go through every run."""
        return iter(self._held.items())

    @property
    def missing(self) -> int:
        """Batches lost or still on the way, over all runs."""
        return sum(held.missing for held in self._held.values())
