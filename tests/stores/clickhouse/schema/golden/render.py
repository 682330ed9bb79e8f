"""Regenerate the golden files."""

from pathlib import Path

from gpufleet.stores.clickhouse.rollup.tables import all_tables
from gpufleet.stores.clickhouse.schema.statements import render_create
from gpufleet.stores.clickhouse.schema.tables import Engine

for engine in Engine:
    statements = ";\n\n".join(render_create(table, engine) for table in all_tables()) + ";\n"
    (Path(__file__).parent / f"{engine}.sql").write_text(statements)
