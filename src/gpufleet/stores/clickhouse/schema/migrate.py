"""Brings a database to this build's tables, forward only."""

import time
from collections.abc import Sequence

from gpufleet.model.catalogue import CATALOGUE_VERSION
from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.older import carry_over
from gpufleet.stores.clickhouse.rollup.tables import TOUCHED_HOURS, WINDOWS_1M
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.columns import Columns
from gpufleet.stores.clickhouse.schema.statements import (
    render_alters,
    render_compression,
    render_create,
    render_merging,
)
from gpufleet.stores.clickhouse.schema.tables import (
    BUSY,
    LATEST,
    MERGE_SETTING,
    MIGRATIONS,
    PARTS_A_MERGE,
    QUICK,
    SCHEMA_VERSION,
    Engine,
    Table,
)
from gpufleet.stores.clickhouse.schema.wide_latest import columns_of, fill, run, set_aside
from gpufleet.stores.clickhouse.sql.views import VIEWS, mark, render_view

_COMMENTS = (
    "SELECT name, comment FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}"
)

_MERGING = """
SELECT name FROM system.tables
WHERE database = currentDatabase() AND name IN {names:Array(String)} AND position(engine_full, {setting:String}) = 0
    AND (SELECT count() FROM system.merge_tree_settings WHERE name = {known:String}) = 1
ORDER BY name
"""
"""Tables whose parts are not merged as they should be; none on a server that is too old to be told."""

_SLOW = """
SELECT name FROM system.columns
WHERE database = currentDatabase() AND table = {table:String} AND compression_codec != {codec:String}
ORDER BY position
"""
"""Columns that are compressed in another way."""

MARKS_SINCE = 3
"""The version since which whatever is written marks its hours."""

_MARK_ALL = """
INSERT INTO touched_hours
SELECT toStartOfHour(measured_at) AS hour, toUInt64(toUnixTimestamp64Nano(now64(9))) FROM samples GROUP BY hour
"""
"""Has the hours made of samples that were written before there were marks."""


def migrate(handle: Handle, tables: Sequence[Table], engine: Engine) -> list[str]:
    """Make what is missing, add columns that the catalogue gained, and write down what was done.

    A catalogue newer than this build's is no obstacle: it only ever adds columns, which this build
    does not look at. A newer schema is.

    Returns:
        The statements that changed something; nothing where the database was up to date.

    Raises:
        StoreError: if the database was written by a newer schema.
    """
    handle.command(render_create(MIGRATIONS, engine))
    newest = handle.query("SELECT max(version) FROM schema_migrations").result_rows[0][0]
    if newest > SCHEMA_VERSION:
        raise StoreError(
            f"the store has schema version {newest}, this build knows {SCHEMA_VERSION}: run a newer gpufleet"
        )
    names = [table.name for table in tables]
    statements = set_aside(handle)
    present = columns_of(handle, names)
    for table in tables:
        if table.name in present:
            statements += run(handle, render_alters(table, present[table.name]))
        else:
            statements += run(handle, [render_create(table, engine)])
    statements += fill(handle)
    if WINDOWS_1M.name in names:
        statements += carry_over(handle)
    statements += _set_merging(handle)
    statements += _set_compression(handle)
    statements += _set_views(handle)
    if newest < MARKS_SINCE and TOUCHED_HOURS.name in names:
        handle.command(_MARK_ALL)
    if statements or newest < SCHEMA_VERSION:
        row: Columns = {
            "version": [SCHEMA_VERSION],
            "catalogue": [CATALOGUE_VERSION],
            "applied_at": [time.time_ns()],
            "statements": [statements],
        }
        handle.insert_arrow(MIGRATIONS.name, arrow_table(MIGRATIONS, row))
    return statements


def _set_views(handle: Handle) -> list[str]:
    """Make the views that are not there as this build has them, and return the statements that did."""
    rows = handle.query(_COMMENTS, parameters={"names": [view.name for view in VIEWS]}).result_rows
    comments = dict(rows)
    statements = [render_view(view) for view in VIEWS if comments.get(view.name) != mark(view)]
    for statement in statements:
        handle.command(statement)
    return statements


def _set_merging(handle: Handle) -> list[str]:
    """Say how the parts of busy tables are merged, and return the statements that did."""
    parameters = {"names": list(BUSY), "known": MERGE_SETTING, "setting": f"{MERGE_SETTING} = {PARTS_A_MERGE}"}
    statements = [render_merging(name) for (name,) in handle.query(_MERGING, parameters=parameters).result_rows]
    for statement in statements:
        handle.command(statement)
    return statements


def _set_compression(handle: Handle) -> list[str]:
    """Have `latest` compressed quickly, also one that was made otherwise, and return the statements that did."""
    parameters = {"table": LATEST.name, "codec": f"CODEC({QUICK})"}
    statements = [
        render_compression(LATEST, name) for (name,) in handle.query(_SLOW, parameters=parameters).result_rows
    ]
    for statement in statements:
        handle.command(statement)
    return statements
