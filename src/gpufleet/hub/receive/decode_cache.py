"""Cache of decoded batches between acknowledgement and flush, so that few batches are decoded twice.

Numeric columns are packed into arrays. A Python number takes 32 bytes anywhere on the heap. When a flush reads it a
second later, it is in no processor cache, and fetching it takes longer than the work on it. An array is contiguous and
has an eighth of the objects.
"""

import threading
from array import array
from typing import cast

from gpufleet.model.wire.batch import Cell, WireBatch
from gpufleet.model.wire.matrix import NUMBER_CODES, Matrix

_MAX_SHAPES = 1024
"""Maximum number of shared lists of metric names. Nodes of one kind and readers of one lane have the same list."""

_shapes: dict[tuple[str, ...], list[str]] = {}


def pack_columns(batch: WireBatch) -> None:
    """Replace each sample column that has only numbers of its metric's type by an array.

    An array supports the same operations as a list, so the batch is otherwise unchanged. Integers of a float metric
    become floats, as in the store. Columns with absences, other types or integers beyond 63 bits remain lists. Blocks
    with the same metrics share one list of names.
    """
    for block in batch.samples:
        if isinstance(block.columns, Matrix):
            continue  # already contiguous
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
        if len(_shapes) >= _MAX_SHAPES:
            _shapes.clear()  # a sender makes up names; the lists in use are added again
        found = _shapes[shape] = names
    return found


MAX_BYTES = 48 << 20
"""Bound on the uncompressed messages: one second of a million GPUs that report every 15 s.

In memory a batch with a matrix of numbers takes 1.5 times its message, any other batch 3 times.
"""


class DecodedBatchCache:
    """Decoded batches by their number in the log. Thread-safe.

    This is only a cache: batches that do not fit, and those found in the log on start, are decoded from the log.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: dict[int, tuple[WireBatch, int, int]] = {}
        self._lock = threading.Lock()

    def keep(self, number: int, batch: WireBatch, digest: int, weight: int) -> None:
        """Pack and keep a batch with its body's digest if there is room; older batches have priority.

        Args:
            number: of the batch in the log; larger than those of earlier calls.
            batch: modified in place, see `pack_columns`.
            digest: of its body.
            weight: size of its uncompressed message in bytes.
        """
        with self._lock:
            if self._bytes + weight > self._max_bytes:
                return
            self._bytes += weight
        pack_columns(batch)
        with self._lock:
            self._kept[number] = (batch, digest, weight)

    def take(self, number: int) -> tuple[WireBatch, int] | None:
        """Remove and return a batch and its body's digest, or None if it is not in the cache.

        Batches with a lower number are dropped, because the log is flushed in order.
        """
        with self._lock:
            while self._kept and (oldest := next(iter(self._kept))) < number:
                self._bytes -= self._kept.pop(oldest)[2]
            found = self._kept.pop(number, None)
            if found is None:
                return None
            self._bytes -= found[2]
        return found[0], found[1]
