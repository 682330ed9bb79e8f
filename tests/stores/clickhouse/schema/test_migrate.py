"""Migration of databases that it must not change."""

from contextlib import closing

import pytest

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.rollup.tables import all_tables
from gpufleet.stores.clickhouse.schema.statements import render_part_settings, render_parts
from tests.support.clickhouse.process import ClickHouse


def test_table_with_another_key_is_refused_and_unchanged(shared_server: ClickHouse) -> None:
    dsn = shared_server.make("other_key")
    shared_server.query("CREATE TABLE other_key.samples (machine String) ENGINE = MergeTree ORDER BY machine")
    with closing(ClickHouseStore.open(dsn)) as store, pytest.raises(StoreError, match="samples"):
        store.migrate()
    assert shared_server.query(
        "SELECT name FROM system.columns WHERE database = 'other_key' AND table = 'samples'"
    ) == [("machine",)]


def test_earlier_setting_of_parts_is_replaced_once(shared_server: ClickHouse) -> None:
    dsn = shared_server.make("earlier_merging")
    definitions = "SELECT name, engine_full FROM system.tables WHERE database = 'earlier_merging'"
    statements = "SELECT statements FROM earlier_merging.schema_migrations ORDER BY applied_at"
    with closing(ClickHouseStore.open(dsn)) as store:
        store.migrate()
        shared_server.query("ALTER TABLE earlier_merging.samples MODIFY SETTING min_parts_to_merge_at_once = 3")
        store.migrate()
        store.migrate()
    defined = dict(shared_server.query(definitions))
    for table in all_tables():
        assert all(setting in defined[table.name] for setting in render_part_settings(table)), table.name
    samples = next(table for table in all_tables() if table.name == "samples")
    assert [made for (made,) in shared_server.query(statements)][1:] == [[render_parts(samples)]]
