"""Key columns of sample rows, built from blocks: one value per block, expanded to rows for all blocks at once. Pure."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Generic, TypeVar

import msgspec
import numpy as np

from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.view import keys_of
from gpufleet.model.wire.batch import DimBlock, SampleBlock
from gpufleet.stores.clickhouse.schema.columns import Columns, DictionaryColumn, IndexedColumn, NumericArray
from gpufleet.stores.clickhouse.schema.sets import EMPTY_SET, Subject

MACHINE_VIEW = ""
"""Value of the column `view` in a row about the machine itself."""

INSTANTS_PER_BATCH = 1000
"""Distinct instants of a batch in the order of reports: batches are at least this many nanoseconds apart."""

Block = TypeVar("Block", SampleBlock, DimBlock)


class PlacedBlock(msgspec.Struct, Generic[Block], frozen=True):
    """Block with the offsets of its batch in the lists of `RowKeys`."""

    accepted: AcceptedBatch
    block: Block
    machines: int
    views: int
    absences: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.block.measured_at)

    def subject(self, row: int) -> Subject:
        """Return the subject of a row: cluster, machine, view, reader, lane."""
        batch, block = self.accepted.batch, self.block
        view = block.view[row]
        key = batch.views[view].key if view >= 0 else MACHINE_VIEW
        return batch.cluster, self.accepted.machine_ids[block.machine[row]], key, block.reader, block.lane


class RowKeys:
    """Key columns of many blocks. Machines, views and absences of all batches are in one list each."""

    def __init__(self) -> None:
        self._machines: list[str] = []
        self._views: list[str] = []
        self._absences: list[int] = []

    def add(
        self, accepted: AcceptedBatch, blocks: Sequence[Block], absence_ids: Sequence[int]
    ) -> list[PlacedBlock[Block]]:
        """Add blocks of a batch; `absence_ids` are the ids of `batch.absences`."""
        # Position -1 refers to the entry before the batch: the machine itself, and no absences.
        machines, views, absences = len(self._machines), len(self._views) + 1, len(self._absences) + 1
        self._machines.extend(accepted.machine_ids)
        self._views.append(MACHINE_VIEW)
        self._views.extend(keys_of(accepted.batch.views))
        self._absences.append(EMPTY_SET)
        self._absences.extend(absence_ids)
        return [PlacedBlock(accepted, block, machines, views, absences) for block in blocks]

    def columns(self, placed: Sequence[PlacedBlock[Block]]) -> Columns:
        """Return the key columns of the rows of the blocks, in order."""
        counts = row_counts(placed)
        batches = [one.accepted.batch for one in placed]
        blocks = [one.block for one in placed]
        machine = _offset((one.machines for one in placed), (one.machine for one in blocks), counts)
        view = _offset((one.views for one in placed), (one.view for one in blocks), counts)
        absence = _offset((one.absences for one in placed), (one.absence for one in blocks), counts)
        machines = dictionary_column(self._machines)
        return {
            "cluster": repeat_per_row((one.cluster for one in batches), counts),
            "machine": DictionaryColumn(machines.texts, machines.rows[machine]),
            "view": IndexedColumn(self._views, view),
            "reader": repeat_per_row((one.reader for one in blocks), counts),
            "lane": repeat_per_row((one.lane for one in blocks), counts),
            "provenance": repeat_per_row((one.provenance for one in blocks), counts),
            "measured_at": _concatenate((one.measured_at for one in blocks), np.int64, counts),
            "received_at": _expand((one.accepted.received_at for one in placed), np.int64, counts),
            "epoch": repeat_per_row((one.epoch for one in batches), counts),
            "seq": _expand((one.seq for one in batches), np.uint64, counts),
            "driver_session": _concatenate((one.driver_session for one in blocks), np.uint64, counts),
            "absence_set": np.array(self._absences, np.uint64)[absence],
        }


def row_counts(placed: Sequence[PlacedBlock[Block]]) -> NumericArray:
    """Return the number of rows of each block."""
    return np.fromiter((one.rows for one in placed), np.int64, len(placed))


def dictionary_column(texts: Iterable[str]) -> DictionaryColumn:
    """Return texts as a column of repeated texts."""
    numbers: dict[str, int] = {}
    rows = np.fromiter([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    return DictionaryColumn(list(numbers), rows)


def repeat_per_row(texts: Iterable[str], counts: NumericArray) -> DictionaryColumn:
    """Expand one text per block to a column."""
    blocks = dictionary_column(texts)
    return DictionaryColumn(blocks.texts, np.repeat(blocks.rows, counts))


def report_order(placed: Sequence[PlacedBlock[SampleBlock]]) -> NumericArray:
    """Return the place of each row in the order of reports. Within a batch, later measurements are newer."""
    instants: dict[int, set[int]] = {}
    for one in placed:
        instants.setdefault(id(one.accepted), set()).update(one.block.measured_at)
    counts = row_counts(placed)
    if all(len(found) <= 1 for found in instants.values()):
        return _expand((one.accepted.reported_at for one in placed), np.int64, counts)
    places = {
        batch: {instant: min(order, INSTANTS_PER_BATCH - 1) for order, instant in enumerate(sorted(found))}
        for batch, found in instants.items()
    }
    later = ([places[id(one.accepted)][at] for at in one.block.measured_at] for one in placed)
    reported_at = _expand((one.accepted.reported_at for one in placed), np.int64, counts)
    return _concatenate(later, np.int64, counts) + reported_at


def _expand(numbers: Iterable[int], kind: type[np.generic], counts: NumericArray) -> NumericArray:
    """Expand one number per block to a column."""
    return np.repeat(np.fromiter(numbers, kind, len(counts)), counts)


def _concatenate(numbers: Iterable[Sequence[int]], kind: type[np.generic], counts: NumericArray) -> NumericArray:
    """Concatenate one list per block to a column."""
    return np.fromiter(chain.from_iterable(numbers), kind, int(counts.sum()))


def _offset(offsets: Iterable[int], positions: Iterable[Sequence[int]], counts: NumericArray) -> NumericArray:
    """Concatenate positions to a column, each plus the offset of its block."""
    return _concatenate(positions, np.int64, counts) + _expand(offsets, np.int64, counts)
