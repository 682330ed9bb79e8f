"""Blocks of values with dimensions to the columns of `dim_samples`. Pure, and a column at a time."""

from collections.abc import Sequence

from gpufleet.model.catalogue import CATALOGUE, ValueType
from gpufleet.model.stored import Accepted
from gpufleet.model.wire import Cell, DimBlock
from gpufleet.stores.clickhouse.columns import Columns, Ragged
from gpufleet.stores.clickhouse.heads import Heads, Told, repeated, rows_of
from gpufleet.stores.clickhouse.samples import stored_numbers
from gpufleet.stores.clickhouse.schema import DIM_SAMPLES


class DimRows:
    """Gathers the blocks of many batches."""

    def __init__(self) -> None:
        self._heads = Heads()
        self._told: list[Told[DimBlock]] = []
        self._ints: list[Cell] = []
        self._floats: list[Cell] = []
        self._labels = Ragged()

    def add(self, accepted: Accepted, absence_ids: Sequence[int]) -> None:
        """Add every block of a batch; `absence_ids` are the ids of `batch.absences`."""
        batch = accepted.batch
        if not batch.dims:
            return
        self._told += self._heads.tell(accepted, batch.dims, absence_ids)
        for block in batch.dims:
            count = len(block.measured_at)
            metric = CATALOGUE[block.metric]
            for labels in zip(*block.labels, strict=True):
                self._labels.add(labels)
            floating = metric.type is ValueType.FLOAT
            self._floats.extend(block.values if floating else [None] * count)
            self._ints.extend([None] * count if floating else stored_numbers(metric, block.values))

    @property
    def columns(self) -> Columns:
        """Everything gathered, as columns."""
        columns: Columns = {
            **self._heads.columns(self._told),
            "metric": repeated((one.block.metric for one in self._told), rows_of(self._told)),
            "labels": self._labels,
            "int_value": self._ints,
            "float_value": self._floats,
        }
        return {column.name: columns[column.name] for column in DIM_SAMPLES.columns}


def tellers(accepted: Sequence[Accepted]) -> set[tuple[str, str]]:
    """Return (cluster, machine) of which batches have values with dimensions."""
    return {
        (one.batch.cluster, one.machine_ids[number])
        for one in accepted
        for block in one.batch.dims
        for number in set(block.machine)
    }
