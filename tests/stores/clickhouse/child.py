"""Store scenarios that need a process of their own: `python child.py SCENARIO FOLDER`. Each prints JSON lines."""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, CORE_METRICS, Lane
from gpufleet.model.errors import StoreError
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.retention import UNLIMITED_DAYS, Retention
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.connection.client import Handles, open_connector
from gpufleet.stores.clickhouse.connection.dsn import parse_dsn
from gpufleet.stores.clickhouse.rollup.tables import all_tables
from gpufleet.stores.clickhouse.schema.migrate import migrate
from gpufleet.stores.clickhouse.schema.statements import render_create
from gpufleet.stores.clickhouse.schema.tables import MIGRATIONS, tables
from tests.support.accepted import accept
from tests.support.store_folders import copy_empty_store

T0 = 1_700_000_000_000_000_000
GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")


def emit(value: object) -> None:
    print(json.dumps(value), flush=True)


def numbered_batch(number: int) -> AcceptedBatch:
    values: dict[str, Value | Absent] = {"gpu_power_watts": float(number), "gpu_name": f"name {number // 3}"}
    sample = Sample(view=GPU, reader="nvml", lane=Lane.FAST, measured_at=T0 + number, values=values)
    return accept("c", "m", [sample], seq=number + 1)


def opened(folder: str) -> ClickHouseStore:
    store = ClickHouseStore.open(f"chdb://{folder}")
    store.migrate()
    return store


def write_until_killed(folder: str) -> None:
    if not Path(folder).exists():
        copy_empty_store(Path(folder))
    store = opened(folder)
    number = len(points(store))
    while True:
        store.write([numbered_batch(number)], f"token {number}")
        emit(number)
        number += 1


def points(store: ClickHouseStore) -> list[float]:
    found = store.series("c", "m", ["gpu_power_watts"], T0, T0 + 10_000, 1)
    return [float(value) for _, value in found.points.get((GPU.key, "gpu_power_watts"), [])]


def read(folder: str) -> None:
    store = opened(folder)
    emit(points(store))
    emit({name: stats.rows for name, stats in store.stats().items()})
    store.write([numbered_batch(0)], "token 0")  # as the process that was killed did
    emit(store.stats()["samples"].rows)
    (stored,) = store.latest("c", "m")
    emit(stored.sample.values["gpu_name"])
    store.close()
    store.close()
    try:
        store.latest("c", "m")
    except StoreError as error:
        emit(str(error))


def try_to_open(folder: str) -> None:
    try:
        ClickHouseStore.open(f"chdb://{folder}")
    except StoreError as error:
        emit(str(error))


def upgrade(folder: str) -> None:
    """Migrate a folder of an older catalogue, then open a folder of a newer build."""
    older = [metric for metric in CORE_METRICS if metric is not CATALOGUE["gpu_power_watts"]]
    dsn = parse_dsn(f"chdb://{folder}")
    handles = Handles(dsn, open_connector(dsn))
    for table in (MIGRATIONS, *tables(older)):
        handles.writer.command(render_create(table))
    handles.writer.command("INSERT INTO schema_migrations VALUES (1, 5, now(), ['all of it'])")
    handles.writer.command(
        "INSERT INTO latest (cluster, machine, reader, lane, provenance, measured_at, received_at, float_ids, "
        "float_values) VALUES ('c', 'm', 'host', 'fast', 'host_local_probe', 1, 1, "
        f"[{CATALOGUE['host_load_1m'].id}], [0.5])"
    )
    handles.close()
    store = opened(folder)
    store.write([numbered_batch(1)], "t")
    emit([stored.sample.values for stored in store.latest("c", "m")])
    store.close()
    handles = Handles(dsn, open_connector(dsn))
    emit(migrate(handles.writer, all_tables(), dsn.engine))
    emit(handles.writer.query("SELECT length(statements) FROM schema_migrations ORDER BY applied_at").result_columns[0])
    handles.writer.command("INSERT INTO schema_migrations VALUES (1000, 1000, now(), [])")
    handles.close()
    try:
        opened(folder)
    except StoreError as error:
        emit(str(error))


def limit_retention(folder: str) -> None:
    """Set the retention of the tables, also to values that a TTL cannot express."""
    copy_empty_store(Path(folder))
    store = opened(folder)
    writer = store._handles.writer
    ttls = "SELECT name, extract(engine_full, 'toIntervalDay[^ ]*') AS days FROM system.tables WHERE days != ''"
    for days in (10_000, UNLIMITED_DAYS, 0):
        store.migrate(Retention(raw_days=days, rollup_1m_days=days or UNLIMITED_DAYS, rollup_1h_days=0))
        emit(sorted(writer.query(ttls).result_rows))
    filled = ("samples", "windows_1m", "windows_1h", "usage_1h")
    writer.command("INSERT INTO samples (subject, measured_at) SELECT 1, now()")
    for name in filled[1:]:
        writer.command(f"INSERT INTO {name} (subject, at) SELECT 1, now()")
    for days in (UNLIMITED_DAYS, 25_000):
        store.migrate(Retention(raw_days=days, rollup_1m_days=days, rollup_1h_days=days))
        for name in filled:
            writer.command(f"OPTIMIZE TABLE {name} FINAL")  # deletes what has expired
    emit([writer.query(f"SELECT count() FROM {name}").result_rows[0][0] for name in filled])
    store.close()


def expire_holdings(folder: str) -> None:
    """Write holdings last reported now and long ago as one part, and apply a retention between them."""
    copy_empty_store(Path(folder))
    store = opened(folder)
    writer = store._handles.writer
    writer.command(
        "INSERT INTO holdings (cluster, machine, holder_id, reported_at) "
        "SELECT 'c', 'm', toString(number), now() - INTERVAL number * 100 DAY FROM numbers(2)"
    )
    for days in (0, 150, 90):
        store.migrate(Retention(raw_days=30, rollup_1m_days=90, rollup_1h_days=days))
        writer.command("OPTIMIZE TABLE holdings FINAL")  # deletes what has expired
        emit([row[0] for row in writer.query("SELECT holder_id FROM holdings ORDER BY holder_id").result_rows])
    store.close()


def fork(folder: str) -> None:
    copy_empty_store(Path(folder))
    store = opened(folder)
    warnings.simplefilter("ignore")  # Python warns about a fork with threads, which is the subject here
    child = os.fork()
    if child == 0:
        try:
            store.latest("c", "m")
        except StoreError as error:
            emit(str(error))
        os._exit(0)
    os.waitpid(child, 0)
    store.close()


def without_libraries(folder: str) -> None:
    for name in ("chdb", "clickhouse_connect", "pyarrow"):
        sys.modules[name] = None  # type: ignore[assignment]  # the import system treats None as "not installed"
    try_to_open(folder)


CHILDREN: dict[str, Callable[[str], None]] = {
    child.__name__: child
    for child in (
        write_until_killed,
        read,
        try_to_open,
        upgrade,
        limit_retention,
        expire_holdings,
        fork,
        without_libraries,
    )
}

if __name__ == "__main__":
    CHILDREN[sys.argv[1]](sys.argv[2])
