"""Rows that `latest` lacks, for tests that query the table without the store."""

from gpufleet.stores.clickhouse import ClickHouseStore


def write_newest_rows(store: ClickHouseStore) -> None:
    """Make the store write the rows that `latest` lacks, as before any statement of a user."""
    store.select("SELECT 1")
