"""Columns of numbers as arrays: an eighth of the objects, and laid end to end they are one piece of memory.

A number of its own takes 32 bytes wherever there is room for it. By the time that a flush comes to it, a second later,
it is in none of the processor's caches, and fetching it takes longer than whatever is done with it.
"""

from array import array
from typing import cast

from gpufleet.model.matrix import NUMBER_CODES, Matrix
from gpufleet.model.wire import Cell, WireBatch

_MOST_SHAPES = 1024
"""Lists of names that are remembered; nodes of one kind, and readers of one lane, have the same."""

_shapes: dict[tuple[str, ...], list[str]] = {}


def pack(batch: WireBatch) -> None:
    """Put an array in the place of each column of samples that has nothing but numbers of its metric's type.

    Everything that a column can be asked for an array answers too: a batch that is packed is the same batch. Integers
    of a metric that is a float become floats, as the store would have them. What does not fit stays a list: absences,
    other types, integers past 63 bits. Blocks with the same metrics share one list of their names.
    """
    for block in batch.samples:
        if isinstance(block.columns, Matrix):
            continue  # its numbers are one piece already
        block.metrics = _shared(block.metrics)
        columns = block.columns
        for position, name in enumerate(block.metrics):
            code = NUMBER_CODES.get(name)
            if code is None:
                continue
            try:
                columns[position] = cast("list[Cell]", array(code, cast("list[float]", columns[position])))
            except (TypeError, OverflowError):
                continue


def _shared(names: list[str]) -> list[str]:
    shape = tuple(names)
    found = _shapes.get(shape)
    if found is None:
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()  # somebody makes up names; those that are in use come back
        found = _shapes[shape] = names
    return found
