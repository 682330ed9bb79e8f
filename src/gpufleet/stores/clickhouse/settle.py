"""Ending an insert that was begun before and may not have come to its end."""

import logging
from hashlib import blake2b
from secrets import token_hex
from typing import Any

from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.schema import Table

LOG = logging.getLogger(__name__)


def settle(handle: Handle, table: Table, rows: Any, token: str) -> None:
    """Insert those of the rows, an Arrow table, that are not in the table.

    The server writes a token down, in `deduplication_logs`, before it gives the part its name. A process that is
    killed between the two leaves a token without rows, and the insert that repeats it is taken for a repetition
    (MergeTree without Keeper, engine 26.9; `docs/decisions/0010-a-token-proves-nothing.md`). So it is the rows that
    are looked for.
    """
    begun = f"begun_{blake2b(token.encode(), digest_size=8).hexdigest()}"
    missing = render_missing(table, begun)
    handle.command(f"DROP TABLE IF EXISTS {begun} SYNC")  # of a process that was killed here
    handle.command(f"CREATE TABLE {begun} AS {table.name} ENGINE = Memory")
    try:
        handle.insert_arrow(begun, rows)
        count = int(handle.query(f"SELECT count() FROM {missing}").result_rows[0][0])  # noqa: S608 - names are ours
        if count:
            LOG.warning(
                "%d rows of %s were not there, though their insert was: they are inserted now", count, table.name
            )
            # Without a token of its own its content would be one, and could have been written down in the same way.
            settings = {"insert_deduplication_token": token_hex(16)}
            handle.command(f"INSERT INTO {table.name} SELECT * FROM {missing}", settings=settings)  # noqa: S608
    finally:
        handle.command(f"DROP TABLE IF EXISTS {begun} SYNC")


def render_missing(table: Table, begun: str) -> str:
    """Return what to select from to have the rows of `begun` that the table lacks, told by what makes them one.

    Where rows of one key have versions, an insert keeps the greatest of its own, so no other is looked for.
    """
    key = ", ".join(f"`{name}`" for name in table.key)
    one = f"{key}, `{table.version}`" if table.version else key
    there = f"SELECT {one} FROM {table.name} WHERE ({key}) IN (SELECT {key} FROM {begun})"  # noqa: S608
    missing = f"{begun} WHERE ({one}) NOT IN ({there})"
    if not table.version:
        return missing
    return f"{missing} AND ({one}) IN (SELECT {key}, max(`{table.version}`) FROM {begun} GROUP BY {key})"  # noqa: S608
