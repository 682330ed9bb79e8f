"""Conversion of batches to table rows, without a database."""

from typing import Any

import pytest

from gpufleet.hub.receive.decode_cache import pack_columns
from gpufleet.model.errors import UnstorableError
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import Cell, WireBatch
from gpufleet.stores.clickhouse.samples.insert import build_columns
from gpufleet.stores.clickhouse.samples.subjects import SubjectNumbers
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.sets import WriteCache
from gpufleet.stores.clickhouse.schema.tables import tables
from tests.hub.flush.test_normalise import NOW, batch_of
from tests.support.arrow_rows import rows_of

TABLES = {table.name: table for table in tables()}


def rows(*batches: WireBatch) -> list[dict[str, Any]]:
    """Return the rows of `samples`, with the columns of their subjects."""
    accepted = [
        AcceptedBatch(received_at=NOW + number, reported_at=NOW + number, machine_ids=(f"m{number}",), batch=batch)
        for number, batch in enumerate(batches)
    ]
    built = build_columns(accepted, WriteCache(), SubjectNumbers()).tables
    samples, subjects = (rows_of(arrow_table(TABLES[name], built[name])) for name in ("samples", "subjects"))
    by_number = {subject.pop("number"): subject for subject in subjects}
    return [{**row, **by_number[row["subject"]]} for row in samples]


def full(watts: list[Cell], used: list[Cell]) -> WireBatch:
    return batch_of(
        {
            "gpu_power_watts": watts,
            "gpu_memory_used_bytes": used,
            "gpu_state": ["ok", "lost"],
            "gpu_name": ["a", "b"],
            "gpu_tensor_activity_ratio": [0.5, 0.25],
        }
    )


def test_batches_with_different_metrics_are_not_mixed() -> None:
    both = full([1.0, 2.0], [3, 4])
    power, used = batch_of({"gpu_power_watts": [5.0]}), batch_of({"gpu_memory_used_bytes": [6, 7]})
    found = rows(power, both, used, both)
    values = {(row["machine"], row.get("gpu_power_watts"), row.get("gpu_memory_used_bytes")) for row in found}
    assert values == {
        ("m0", 5.0, None),
        ("m1", 1.0, 3),
        ("m1", 2.0, 4),
        ("m2", None, 6),
        ("m2", None, 7),
        ("m3", 1.0, 3),
        ("m3", 2.0, 4),
    }


def test_packed_batches_give_the_same_rows() -> None:
    def batches() -> list[WireBatch]:
        gap, whole = full([None, 2.0], [3, 2**63]), full([1.0, 2.0], [3, 4])
        return [gap, batch_of({"gpu_power_watts": [5.0]}), whole, whole]

    packed = batches()
    for batch in packed[1:]:
        pack_columns(batch)
    assert rows(*packed) == rows(*batches())


def test_tails_contain_only_present_values() -> None:
    names = ("gpu_tensor_activity_ratio", "gpu_dram_activity_ratio")
    columns: list[list[Cell]] = [[0.5, None, None], [0.25, 0.75, None]]
    found = rows(batch_of(dict(zip(names, columns, strict=True))))
    assert [row["tail_float_values"] for row in found] == [[0.5, 0.25], [0.75], []]
    assert [len(row["tail_float_ids"]) for row in found] == [2, 1, 0]


def test_packed_number_outside_its_column_is_an_error() -> None:
    batch = batch_of({"gpu_memory_used_bytes": [-1]})  # not validated
    pack_columns(batch)
    with pytest.raises(UnstorableError, match="gpu_memory_used_bytes"):
        rows(batch)
