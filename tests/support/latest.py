"""Deferred rows of `latest`, for tests that query the table without the store."""

from gpufleet.stores.clickhouse import ClickHouseStore


def write_deferred_rows(store: ClickHouseStore) -> None:
    """Make the store write deferred rows, as before any statement of a user."""
    store.select("SELECT 1")
