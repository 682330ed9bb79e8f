"""Migration of databases that it must not change."""

from contextlib import closing

import pytest

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.schema.statements import render_merge_settings, render_merging
from gpufleet.stores.clickhouse.schema.tables import BUSY_TABLES
from tests.support.clickhouse.process import ClickHouse


def test_table_with_another_key_is_refused_and_unchanged(shared_server: ClickHouse) -> None:
    dsn = shared_server.make("other_key")
    shared_server.query("CREATE TABLE other_key.samples (machine String) ENGINE = MergeTree ORDER BY machine")
    with closing(ClickHouseStore.open(dsn)) as store, pytest.raises(StoreError, match="samples"):
        store.migrate()
    assert shared_server.query(
        "SELECT name FROM system.columns WHERE database = 'other_key' AND table = 'samples'"
    ) == [("machine",)]


def test_earlier_merge_setting_is_replaced_once(shared_server: ClickHouse) -> None:
    dsn = shared_server.make("earlier_merging")
    definitions = "SELECT name, engine_full FROM system.tables WHERE database = 'earlier_merging'"
    statements = "SELECT statements FROM earlier_merging.schema_migrations ORDER BY applied_at"
    with closing(ClickHouseStore.open(dsn)) as store:
        store.migrate()
        shared_server.query("ALTER TABLE earlier_merging.samples MODIFY SETTING min_parts_to_merge_at_once = 3")
        store.migrate()
        store.migrate()
    defined = dict(shared_server.query(definitions))
    for name in BUSY_TABLES:
        assert all(setting in defined[name] for setting in render_merge_settings()), name
    assert [made for (made,) in shared_server.query(statements)][1:] == [[render_merging("samples")]]
