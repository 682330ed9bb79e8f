"""Blocks of values with dimensions to the columns of `dim_samples`. Pure, and a column at a time."""

from collections.abc import Sequence

from gpufleet.model.catalogue import CATALOGUE, ValueType
from gpufleet.model.stored import Accepted
from gpufleet.model.wire import Cell
from gpufleet.stores.clickhouse.columns import Coded, Columns, Ragged
from gpufleet.stores.clickhouse.samples import batch_codes, stored_numbers
from gpufleet.stores.clickhouse.sets import EMPTY


class DimRows:
    """Gathers the blocks of many batches."""

    def __init__(self) -> None:
        self._texts = {
            name: Coded() for name in ("cluster", "machine", "view", "reader", "lane", "provenance", "metric")
        }
        self._numbers: dict[str, list[int]] = {
            name: [] for name in ("measured_at", "received_at", "driver_session", "absence_set")
        }
        self._ints: list[Cell] = []
        self._floats: list[Cell] = []
        self._labels = Ragged()

    def add(self, accepted: Accepted, absence_ids: Sequence[int]) -> None:
        """Add every block of a batch; `absence_ids` are the ids of `batch.absences`."""
        batch = accepted.batch
        if not batch.dims:
            return
        texts, numbers = self._texts, self._numbers
        machine_codes, view_codes = batch_codes(accepted, texts["machine"], texts["view"])
        absences = [*absence_ids, EMPTY]
        for block in batch.dims:
            count = len(block.measured_at)
            metric = CATALOGUE[block.metric]
            texts["cluster"].repeat(batch.cluster, count)
            texts["machine"].rows.extend(map(machine_codes.__getitem__, block.machine))
            texts["view"].rows.extend(map(view_codes.__getitem__, block.view))
            texts["reader"].repeat(block.reader, count)
            texts["lane"].repeat(block.lane, count)
            texts["provenance"].repeat(block.provenance, count)
            texts["metric"].repeat(block.metric, count)
            numbers["measured_at"].extend(block.measured_at)
            numbers["received_at"].extend([accepted.received_at] * count)
            numbers["driver_session"].extend(block.driver_session)
            numbers["absence_set"].extend(map(absences.__getitem__, block.absence))
            for labels in zip(*block.labels, strict=True):
                self._labels.add(labels)
            floating = metric.type is ValueType.FLOAT
            self._floats.extend(block.values if floating else [None] * count)
            self._ints.extend([None] * count if floating else stored_numbers(metric, block.values))

    @property
    def columns(self) -> Columns:
        """Everything gathered, as columns."""
        return {
            **self._texts,
            **self._numbers,
            "labels": self._labels,
            "int_value": self._ints,
            "float_value": self._floats,
        }
