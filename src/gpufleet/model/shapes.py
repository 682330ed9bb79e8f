"""Blocks with the same metrics, brought together."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from gpufleet.model.wire import SampleBlock

_T = TypeVar("_T")


class Shapes(Generic[_T]):
    """Something for each list of metrics that blocks have.

    Many blocks share one list object of names, which is found without a look at the names. So a block must live, and
    keep its list, for as long as this.
    """

    def __init__(self, make: Callable[[tuple[str, ...]], _T]) -> None:
        """Take what makes a new one for the names of a block's metrics."""
        self._make = make
        self._by_names: dict[tuple[str, ...], _T] = {}
        self._by_list: dict[int, _T] = {}

    def of(self, block: SampleBlock) -> _T:
        """Return what belongs to the block's metrics."""
        found = self._by_list.get(id(block.metrics))
        if found is not None:
            return found
        names = tuple(block.metrics)
        found = self._by_names.get(names)
        if found is None:
            found = self._by_names[names] = self._make(names)
        self._by_list[id(block.metrics)] = found
        return found

    def all(self) -> Iterable[_T]:
        """Return everything, in the order of coming."""
        return self._by_names.values()
