"""Sets of sequence numbers, kept as merged ranges: a year without loss is one range."""

import bisect
from collections.abc import Iterable

from gpufleet.model.ledger import Ranges


class Intervals:
    """A set of positive integers that is cheap while it is mostly contiguous."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._count = 0
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1] + 1:
                self._count += max(0, end - self._ends[-1])
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
                self._count += end - start + 1

    def __contains__(self, number: int) -> bool:
        position = bisect.bisect_right(self._starts, number) - 1
        return position >= 0 and number <= self._ends[position]

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> bool:
        """Add a number; returns whether it was new."""
        position = bisect.bisect_right(self._starts, number)
        if position and number <= self._ends[position - 1]:
            return False
        joins_left = position > 0 and self._ends[position - 1] == number - 1
        joins_right = position < len(self._starts) and self._starts[position] == number + 1
        if joins_left and joins_right:
            self._ends[position - 1] = self._ends[position]
            del self._starts[position], self._ends[position]
        elif joins_left:
            self._ends[position - 1] = number
        elif joins_right:
            self._starts[position] = number
        else:
            self._starts.insert(position, number)
            self._ends.insert(position, number)
        self._count += 1
        return True

    def end_of(self, number: int) -> int:
        """Return the end of the range that has the number, or 0 where none has."""
        position = bisect.bisect_right(self._starts, number) - 1
        return self._ends[position] if position >= 0 and number <= self._ends[position] else 0

    @property
    def ranges(self) -> Ranges:
        """The set as merged ranges, lowest first."""
        return tuple(zip(self._starts, self._ends, strict=True))

    @property
    def range_count(self) -> int:
        """How many ranges it takes to say the set."""
        return len(self._starts)

    @property
    def highest(self) -> int:
        """The highest number, 0 when empty."""
        return self._ends[-1] if self._ends else 0

    @property
    def missing(self) -> int:
        """How many numbers from 1 to the highest are not in the set."""
        return self.highest - self._count

    def gaps(self, limit: int) -> Ranges:
        """Return the lowest ranges of missing numbers, at most `limit` of them."""
        found: list[tuple[int, int]] = []
        expected = 1
        for start, end in zip(self._starts, self._ends, strict=True):
            if len(found) == limit:
                break
            if start > expected:
                found.append((expected, start - 1))
            expected = end + 1
        return tuple(found)
