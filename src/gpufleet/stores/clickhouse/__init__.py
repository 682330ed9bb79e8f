"""The store in the ClickHouse dialect: one schema from an embedded file to a cluster."""

from gpufleet.stores.clickhouse.sql.queries import TableStats
from gpufleet.stores.clickhouse.store import ClickHouseStore

__all__ = ["ClickHouseStore", "TableStats"]
