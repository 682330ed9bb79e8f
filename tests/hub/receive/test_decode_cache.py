"""Packed columns: a batch with its numbers in arrays equals the received batch."""

from array import array
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.codecs.batch import decode, encode_wire
from gpufleet.hub.flush.normalise import normalise
from gpufleet.hub.flush.screening import screen
from gpufleet.hub.receive.decode_cache import pack_columns
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import Cell, WireBatch
from gpufleet.stores.clickhouse.samples.insert import build_columns
from gpufleet.stores.clickhouse.samples.subjects import SubjectNumbers
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.sets import WriteCache
from gpufleet.stores.clickhouse.schema.tables import tables
from tests.fakes.batches import body
from tests.hub.flush.test_normalise import NOW, batch_of, values_of
from tests.hub.flush.test_screening import batches, on_the_wire
from tests.support.arrow_rows import rows_of
from tests.support.profiles import examples


def test_numeric_columns_become_arrays() -> None:
    batch = batch_of(
        {
            "gpu_power_watts": [1.5, 2],
            "gpu_memory_used_bytes": [3, 2**63 - 1],
            "gpu_energy_joules_total": [None, 1.0],
            "gpu_graphics_clock_hertz": [1, 2.5],
            "gpu_memory_total_bytes": [2**63, 1],
            "gpu_state": ["ok", "lost"],
            "made_up": [1, 2],
        }
    )
    pack_columns(batch)
    power, used, *others = batch.samples[0].columns
    assert repr([power, used]) == repr([array("d", [1.5, 2.0]), array("q", [3, 2**63 - 1])])
    assert others == [[None, 1.0], [1, 2.5], [2**63, 1], ["ok", "lost"], [1, 2]]


def test_blocks_with_the_same_metrics_share_their_names() -> None:
    one, other = decode(body(1, NOW)), decode(body(2, NOW))
    pack_columns(one)
    pack_columns(other)
    assert [block.metrics for block in one.samples] == [block.metrics for block in other.samples]
    assert all(a.metrics is b.metrics for a, b in zip(one.samples, other.samples, strict=True))


@given(st.lists(batches(), min_size=1, max_size=4), st.integers(0, 3))
def test_packing_changes_no_result(group: list[WireBatch], packed: int) -> None:
    plain = [normalise(batch, NOW, suspects) for batch, suspects in zip(group, screen(group), strict=True)]
    for batch in group[:packed]:
        pack_columns(batch)
    for before, (batch, suspects) in zip(plain, zip(group, screen(group), strict=True), strict=True):
        after = normalise(batch, NOW, suspects)
        assert after.invalid_values == before.invalid_values
        assert after.unknown_metrics == before.unknown_metrics
        assert after.batch.absences == before.batch.absences
        assert values_of(after.batch) == values_of(before.batch)


def test_packed_batch_equals_the_received_batch() -> None:
    content = body(1, NOW)
    batch = decode(content)
    pack_columns(batch)
    for block in batch.samples:
        block.columns = [list(column) for column in block.columns]
    assert batch == decode(content)


numbers: st.SearchStrategy[Cell] = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(), st.floats(0, 1), st.integers(0, 9), st.none()
)


@settings(max_examples=examples(40, 400))
@given(st.lists(batches(st.one_of(on_the_wire, numbers)), min_size=1, max_size=4))
def test_matrix_decoding_gives_the_same_rows(group: list[WireBatch]) -> None:
    bodies = [encode_wire(batch) for batch in group]
    before = [decode(content) for content in bodies]
    after = [decode(content, as_matrix=True) for content in bodies]
    for batch in after:
        pack_columns(batch)
    normalised = [
        [normalise(batch, NOW, suspects) for batch, suspects in zip(found, screen(found), strict=True)]
        for found in (before, after)
    ]
    for one, other in zip(*normalised, strict=True):
        assert values_of(one.batch) == values_of(other.batch)
        assert one.batch.absences == other.batch.absences
        assert (one.invalid_values, one.unknown_metrics) == (other.invalid_values, other.unknown_metrics)
    assert stored([one.batch for one in normalised[0]]) == stored([one.batch for one in normalised[1]])


def stored(group: list[WireBatch]) -> Any:
    """Return the sorted rows that the store writes for these batches."""
    accepted = [
        AcceptedBatch(received_at=NOW, reported_at=NOW + at, machine_ids=("m",), batch=batch)
        for at, batch in enumerate(group)
    ]
    written = build_columns(accepted, WriteCache(), SubjectNumbers()).tables["samples"]
    table = arrow_table(next(table for table in tables() if table.name == "samples"), written)
    return sorted(map(repr, rows_of(table)))
