"""Numbers for things that are too many to be kept by name: 12 bytes each."""

import numpy as np

from gpufleet.stores.clickhouse.columns import Numeric

UNKNOWN = -1


class Numbering:
    """Gives 64-bit names the numbers 0, 1, 2 ... in the order in which they come."""

    def __init__(self) -> None:
        self._names = np.empty(0, np.int64)  # sorted
        self._numbers = np.empty(0, np.int32)

    def __len__(self) -> int:
        """Return how many names have a number, which is the next number."""
        return len(self._names)

    def find(self, names: Numeric) -> Numeric:
        """Return the number of each name, `UNKNOWN` where it has none."""
        if not len(self):
            return np.full(len(names), UNKNOWN, np.int32)
        order = np.argsort(names)  # neighbours are looked for in the same memory: half the time, of a million
        places = np.minimum(np.searchsorted(self._names, names[order]), len(self) - 1)
        found = np.empty(len(names), np.int32)
        found[order] = np.where(self._names[places] == names[order], self._numbers[places], UNKNOWN)
        return found

    def number(self, names: Numeric) -> tuple[Numeric, Numeric]:
        """Return the number of each name, giving those that are new the next ones, and where each new one stands first.

        The places of new names are in the order of their numbers.
        """
        numbers = self.find(names)
        unknown = np.flatnonzero(numbers == UNKNOWN)
        if not len(unknown):
            return numbers, unknown
        new, firsts = np.unique(names[unknown], return_index=True)
        self._add(new)
        return self.find(names), unknown[firsts]

    def _add(self, names: Numeric) -> None:
        """Give the next numbers to names that are sorted, different, and have none."""
        places = np.searchsorted(self._names, names)
        numbers = np.arange(len(self), len(self) + len(names), dtype=np.int32)
        self._names = np.insert(self._names, places, names)
        self._numbers = np.insert(self._numbers, places, numbers)


class Newest:
    """Of each number what was told of it last in the order of reports, which is not the order in which it comes.

    Attributes:
        cells: by number; `empty` where nothing was told.
    """

    def __init__(self, empty: int) -> None:
        self.cells = np.empty(0, np.int64)
        self._ranks = np.empty(0, np.int64)
        self._empty = empty

    def grow(self, more: int) -> None:
        """Make room for the next numbers."""
        self.cells = np.concatenate([self.cells, np.full(more, self._empty, np.int64)])
        self._ranks = np.concatenate([self._ranks, np.zeros(more, np.int64)])

    def tell(self, numbers: Numeric, ranks: Numeric, cells: Numeric) -> None:
        """Take in what is told of numbers, each in its place in the order of reports, and all in that order."""
        is_news = ranks >= self._ranks[numbers]
        numbers = numbers[is_news]
        self.cells[numbers] = cells[is_news]  # the last that is assigned stays
        self._ranks[numbers] = ranks[is_news]
