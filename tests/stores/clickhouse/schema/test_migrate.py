"""Migration of databases that it must not change."""

from contextlib import closing

import pytest

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.clickhouse.process import ClickHouse


def test_table_with_another_key_is_refused_and_unchanged(shared_server: ClickHouse) -> None:
    dsn = shared_server.make("other_key")
    shared_server.query("CREATE TABLE other_key.samples (machine String) ENGINE = MergeTree ORDER BY machine")
    with closing(ClickHouseStore.open(dsn)) as store, pytest.raises(StoreError, match="samples"):
        store.migrate()
    assert shared_server.query(
        "SELECT name FROM system.columns WHERE database = 'other_key' AND table = 'samples'"
    ) == [("machine",)]
