"""What rows are about, as columns of their tables. Pure: a value a block, made rows of all blocks at once."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Generic, TypeVar

import msgspec
import numpy as np

from gpufleet.model.stored.samples import Accepted
from gpufleet.model.view import keys_of
from gpufleet.model.wire.batch import DimBlock, SampleBlock
from gpufleet.stores.clickhouse.schema.columns import Chosen, Coded, Columns, Numeric
from gpufleet.stores.clickhouse.schema.sets import EMPTY, Subject

MACHINE_ITSELF = ""
"""What stands in the column `view` of a row about the machine."""

INSTANTS_A_BATCH = 1000
"""Instants of one batch that are told apart in the order of reports: so many nanoseconds lie between two batches."""

Block = TypeVar("Block", SampleBlock, DimBlock)


class Told(msgspec.Struct, Generic[Block], frozen=True):
    """A block, and where in the lists of its `Heads` that begins which its positions point into."""

    accepted: Accepted
    block: Block
    machines: int
    views: int
    absences: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.block.measured_at)

    def subject(self, row: int) -> Subject:
        """Return what a row is about: cluster, machine, view, reader, lane."""
        batch, block = self.accepted.batch, self.block
        view = block.view[row]
        key = batch.views[view].key if view >= 0 else MACHINE_ITSELF
        return batch.cluster, self.accepted.machine_ids[block.machine[row]], key, block.reader, block.lane


class Heads:
    """Gathers what blocks are about. Machines, views and absences of all batches lie in one list each."""

    def __init__(self) -> None:
        self._machines: list[str] = []
        self._views: list[str] = []
        self._absences: list[int] = []

    def tell(self, accepted: Accepted, blocks: Sequence[Block], absence_ids: Sequence[int]) -> list[Told[Block]]:
        """Take in blocks of a batch; `absence_ids` are the ids of `batch.absences`."""
        # A position of -1 is the one before the others: the machine itself, and nothing absent.
        machines, views, absences = len(self._machines), len(self._views) + 1, len(self._absences) + 1
        self._machines.extend(accepted.machine_ids)
        self._views.append(MACHINE_ITSELF)
        self._views.extend(keys_of(accepted.batch.views))
        self._absences.append(EMPTY)
        self._absences.extend(absence_ids)
        return [Told(accepted, block, machines, views, absences) for block in blocks]

    def columns(self, told: Sequence[Told[Block]]) -> Columns:
        """Return the columns of the rows of those blocks, in their order."""
        counts = rows_of(told)
        batches = [one.accepted.batch for one in told]
        blocks = [one.block for one in told]
        machine = _placed((one.machines for one in told), (one.machine for one in blocks), counts)
        view = _placed((one.views for one in told), (one.view for one in blocks), counts)
        absence = _placed((one.absences for one in told), (one.absence for one in blocks), counts)
        machines = coded(self._machines)
        return {
            "cluster": repeated((one.cluster for one in batches), counts),
            "machine": Coded(machines.texts, machines.rows[machine]),
            "view": Chosen(self._views, view),
            "reader": repeated((one.reader for one in blocks), counts),
            "lane": repeated((one.lane for one in blocks), counts),
            "provenance": repeated((one.provenance for one in blocks), counts),
            "measured_at": _flat((one.measured_at for one in blocks), np.int64, counts),
            "received_at": _spread((one.accepted.received_at for one in told), np.int64, counts),
            "epoch": repeated((one.epoch for one in batches), counts),
            "seq": _spread((one.seq for one in batches), np.uint64, counts),
            "driver_session": _flat((one.driver_session for one in blocks), np.uint64, counts),
            "absence_set": np.array(self._absences, np.uint64)[absence],
        }


def rows_of(told: Sequence[Told[Block]]) -> Numeric:
    """Return how many rows each block has."""
    return np.fromiter((one.rows for one in told), np.int64, len(told))


def coded(texts: Iterable[str]) -> Coded:
    """Return texts that repeat as a column."""
    numbers: dict[str, int] = {}
    rows = np.fromiter([numbers.setdefault(text, len(numbers)) for text in texts], np.int32)
    return Coded(list(numbers), rows)


def repeated(texts: Iterable[str], counts: Numeric) -> Coded:
    """Return a text a block as a column."""
    blocks = coded(texts)
    return Coded(blocks.texts, np.repeat(blocks.rows, counts))


def known_at(told: Sequence[Told[SampleBlock]]) -> Numeric:
    """Return the place of each row in the order of reports: within a batch, what was measured later is newer."""
    instants: dict[int, set[int]] = {}
    for one in told:
        instants.setdefault(id(one.accepted), set()).update(one.block.measured_at)
    counts = rows_of(told)
    if all(len(found) <= 1 for found in instants.values()):
        return _spread((one.accepted.reported_at for one in told), np.int64, counts)
    places = {
        batch: {instant: min(order, INSTANTS_A_BATCH - 1) for order, instant in enumerate(sorted(found))}
        for batch, found in instants.items()
    }
    later = ([places[id(one.accepted)][at] for at in one.block.measured_at] for one in told)
    return _flat(later, np.int64, counts) + _spread((one.accepted.reported_at for one in told), np.int64, counts)


def _spread(numbers: Iterable[int], kind: type[np.generic], counts: Numeric) -> Numeric:
    """Return a number a block as a column."""
    return np.repeat(np.fromiter(numbers, kind, len(counts)), counts)


def _flat(numbers: Iterable[Sequence[int]], kind: type[np.generic], counts: Numeric) -> Numeric:
    """Return a list a block as a column."""
    return np.fromiter(chain.from_iterable(numbers), kind, int(counts.sum()))


def _placed(begins: Iterable[int], positions: Iterable[Sequence[int]], counts: Numeric) -> Numeric:
    """Return positions as a column; those of a block are counted from where its `begins`."""
    return _flat(positions, np.int64, counts) + _spread(begins, np.int64, counts)
