"""Statements of the tables: golden files, and migration of an older store."""

from pathlib import Path

import msgspec
import pytest

from gpufleet.model.catalogue import CATALOGUE, CORE_METRICS, Storage, ValueType
from gpufleet.stores.clickhouse.rollup.tables import all_tables
from gpufleet.stores.clickhouse.schema.statements import render_alters, render_create
from gpufleet.stores.clickhouse.schema.tables import Engine, TableDefinition, tables

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("engine", list(Engine))
def test_statements_match_the_golden_files(engine: Engine) -> None:
    """Regenerate with `python tests/stores/clickhouse/schema/golden/render.py`, and read the difference."""
    rendered = ";\n\n".join(render_create(table, engine) for table in all_tables()) + ";\n"
    assert rendered == (GOLDEN / f"{engine}.sql").read_text()


def test_core_metrics_are_columns_of_samples_only() -> None:
    samples, latest, *_ = tables()
    names = {metric.name for metric in CORE_METRICS}
    assert names <= {column.name for column in samples.columns}
    assert not names & {column.name for column in latest.columns}


def test_integers_of_tails_and_dimensions_are_never_negative() -> None:
    for metric in CATALOGUE.values():
        if metric.storage in (Storage.TAIL, Storage.DIM) and metric.type is ValueType.INT:
            assert metric.low is not None, metric.name
            assert metric.low >= 0, metric.name


def test_older_table_gains_columns_and_states() -> None:
    older_state = msgspec.structs.replace(CATALOGUE["gpu_state"], states=("ok", "lost"))
    older = [
        older_state if metric.name == "gpu_state" else metric
        for metric in CORE_METRICS
        if metric.name != "gpu_power_watts"
    ]
    statements = render_alters(tables()[0], _present(tables(older)[0]))
    added, widened = (statement.split(" CODEC")[0] for statement in statements)
    assert added == "ALTER TABLE samples ADD COLUMN IF NOT EXISTS `gpu_power_watts` Nullable(Float64)"
    names = "'ok' = 0, 'lost' = 1, 'reset_required' = 2, 'hung' = 3, 'unreadable' = 4, 'error' = 5"
    assert widened == f"ALTER TABLE samples MODIFY COLUMN `gpu_state` Nullable(Enum8({names}))"


def test_columns_of_a_newer_table_are_kept() -> None:
    older = [metric for metric in CORE_METRICS if metric.name != "gpu_power_watts"]
    assert render_alters(tables(older)[0], _present(tables()[0])) == []


def _present(table: TableDefinition) -> dict[str, str]:
    return {column.name: column.type for column in table.columns}
