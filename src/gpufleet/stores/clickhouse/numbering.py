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

    def add(self, names: Numeric) -> None:
        """Give the next numbers to names that are sorted, different, and have none."""
        places = np.searchsorted(self._names, names)
        numbers = np.arange(len(self), len(self) + len(names), dtype=np.int32)
        self._names = np.insert(self._names, places, names)
        self._numbers = np.insert(self._numbers, places, numbers)
