"""Migration of a database to the tables of this build, forward only."""

import time
from collections.abc import Sequence

from gpufleet.model.catalogue import CATALOGUE_VERSION
from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.columns import Columns
from gpufleet.stores.clickhouse.schema.statements import (
    render_alters,
    render_create,
    render_part_settings,
    render_parts,
)
from gpufleet.stores.clickhouse.schema.tables import (
    MIGRATIONS,
    SCHEMA_VERSION,
    Engine,
    TableDefinition,
)
from gpufleet.stores.clickhouse.sql.definition import render_view, view_digest
from gpufleet.stores.clickhouse.sql.views import VIEWS

_COLUMNS = """
SELECT table, name, type FROM system.columns WHERE database = currentDatabase() AND table IN {names:Array(String)}
"""

_KEYS = """
SELECT name, sorting_key FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}
"""

_COMMENTS = (
    "SELECT name, comment FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}"
)

_DEFINITIONS = """
SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}
ORDER BY name
"""


def migrate(handle: Handle, tables: Sequence[TableDefinition], engine: Engine) -> list[str]:
    """Create missing tables, add columns that the catalogue gained, and record the statements in `schema_migrations`.

    A database with a newer catalogue is accepted: a newer catalogue only adds columns, which this build does not read.

    Returns:
        The statements that changed something; none if the database was up to date.

    Raises:
        StoreError: if the database has a newer schema version, or a table with another sorting key.
    """
    handle.command(render_create(MIGRATIONS, engine))
    newest = handle.query("SELECT max(version) FROM schema_migrations").result_rows[0][0]
    if newest > SCHEMA_VERSION:
        raise StoreError(
            f"the store has schema version {newest}, this build supports {SCHEMA_VERSION}: run a newer gpufleet"
        )
    _check_keys(handle, tables)
    present = _present_columns(handle, [table.name for table in tables])
    statements: list[str] = []
    for table in tables:
        if table.name in present:
            statements += render_alters(table, present[table.name])
        else:
            statements.append(render_create(table, engine))
    _run(handle, statements)
    statements += _run(handle, _part_settings(handle, tables))
    statements += _run(handle, _outdated_views(handle))
    if statements or newest < SCHEMA_VERSION:
        row: Columns = {
            "version": [SCHEMA_VERSION],
            "catalogue": [CATALOGUE_VERSION],
            "applied_at": [time.time_ns()],
            "statements": [statements],
        }
        handle.insert_arrow(MIGRATIONS.name, arrow_table(MIGRATIONS, row))
    return statements


def _check_keys(handle: Handle, tables: Sequence[TableDefinition]) -> None:
    """Reject a table whose rows have another identity: a sorting key cannot be migrated."""
    expected = {table.name: ", ".join(table.key) for table in tables}
    for name, key in sorted(handle.query(_KEYS, parameters={"names": list(expected)}).result_rows):
        if key.strip("()") != expected[name]:  # the engine keeps the parentheses of a single column
            raise StoreError(
                f"the table {name} has the sorting key ({key}), not ({expected[name]}): it was made by hand or by an "
                "unreleased version; start with an empty store"
            )


def _run(handle: Handle, statements: Sequence[str]) -> Sequence[str]:
    """Run statements without a time limit, and return them."""
    for statement in statements:
        handle.command(statement, settings={"max_execution_time": 0})
    return statements


def _present_columns(handle: Handle, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return table name to column name to type, for the tables that exist."""
    present: dict[str, dict[str, str]] = {}
    for table, column, type_ in handle.query(_COLUMNS, parameters={"names": list(names)}).result_rows:
        present.setdefault(table, {})[column] = type_
    return present


def _part_settings(handle: Handle, tables: Sequence[TableDefinition]) -> list[str]:
    """Return statements that change other settings of parts and merges, such as those of an earlier build."""
    rows = handle.query(_DEFINITIONS, parameters={"names": [table.name for table in tables]}).result_rows
    definitions = dict(rows)
    return [
        render_parts(table)
        for table in tables
        if not all(setting in definitions[table.name] for setting in render_part_settings(table))
    ]


def _outdated_views(handle: Handle) -> list[str]:
    """Return statements that create the SQL views that are missing or differ from this build's."""
    rows = handle.query(_COMMENTS, parameters={"names": [view.name for view in VIEWS]}).result_rows
    comments = dict(rows)
    return [render_view(view) for view in VIEWS if comments.get(view.name) != view_digest(view)]
