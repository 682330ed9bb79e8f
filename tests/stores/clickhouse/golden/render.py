"""Writes the golden files anew."""

from pathlib import Path

from gpufleet.stores.clickhouse.schema import Engine, render_create, tables

for engine in Engine:
    statements = ";\n\n".join(render_create(table, engine) for table in tables()) + ";\n"
    (Path(__file__).parent / f"{engine}.sql").write_text(statements)
