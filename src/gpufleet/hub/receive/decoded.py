"""Batches as they were unpacked when they were taken, until they are written: few are unpacked twice.

Columns of numbers as arrays: an eighth of the objects, and laid end to end they are one piece of memory.

A number of its own takes 32 bytes wherever there is room for it. By the time that a flush comes to it, a second later,
it is in none of the processor's caches, and fetching it takes longer than whatever is done with it.
"""

import threading
from array import array
from typing import cast

from gpufleet.model.wire.batch import Cell, WireBatch
from gpufleet.model.wire.matrix import NUMBER_CODES, Matrix

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


MOST_BYTES = 48 << 20
"""Of messages, unpacked: a second of a million GPUs that are told of every 15 s. In memory a batch whose numbers are in
one piece is half as large again, another one three times as large."""


class Unpacked:
    """Batches by their number in the log. May be used from several threads.

    It is no place to rely on: what it has no room for is unpacked from the log, as is what waited there.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: dict[int, tuple[WireBatch, int, int]] = {}
        self._lock = threading.Lock()

    def keep(self, number: int, batch: WireBatch, digest: int, weight: int) -> None:
        """Keep a batch, packed from now on, and its body's digest, where there is room: those before it come first.

        `weight` is how many bytes its message has. Numbers grow.
        """
        with self._lock:
            if self._bytes + weight > self._most:
                return
            self._bytes += weight
        pack(batch)
        with self._lock:
            self._kept[number] = (batch, digest, weight)

    def take(self, number: int) -> tuple[WireBatch, int] | None:
        """Return a batch and its body's digest, and keep them no more; None where they are not here.

        The log is written in its order: those before it will not be asked for any more.
        """
        with self._lock:
            while self._kept and (oldest := next(iter(self._kept))) < number:
                self._bytes -= self._kept.pop(oldest)[2]
            found = self._kept.pop(number, None)
            if found is None:
                return None
            self._bytes -= found[2]
        return found[0], found[1]
