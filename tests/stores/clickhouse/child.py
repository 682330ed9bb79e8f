"""Processes of their own for what one process cannot show: `python child.py WHAT FOLDER`. Each prints JSON lines."""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, CORE_METRICS, Lane
from gpufleet.model.errors import StoreError
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.retention import LONGEST_DAYS, Retention
from gpufleet.model.stored.samples import Accepted
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.connection.client import Handles, connector
from gpufleet.stores.clickhouse.connection.dsn import parse_dsn
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, every_table
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.migrate import migrate
from gpufleet.stores.clickhouse.schema.sets import Known
from gpufleet.stores.clickhouse.schema.statements import render_create
from gpufleet.stores.clickhouse.schema.tables import LATEST, MIGRATIONS, tables
from gpufleet.stores.clickhouse.schema.wide_latest import ASIDE, columns_of, render_fill, set_aside
from gpufleet.stores.clickhouse.store import build
from tests.support.accepted import accept

VERSION_1 = Path(__file__).parent / "golden" / "version1.sql"
VERSION_2 = VERSION_1.with_name("version2.sql")
VERSION_3 = VERSION_1.with_name("version3.sql")
T0 = 1_700_000_000_000_000_000
GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


def one(number: int) -> Accepted:
    values: dict[str, Value | Absent] = {"gpu_power_watts": float(number), "gpu_name": f"name {number // 3}"}
    sample = Sample(view=GPU, reader="nvml", lane=Lane.FAST, measured_at=T0 + number, values=values)
    return accept("c", "m", [sample], seq=number + 1)


def opened(folder: str) -> ClickHouseStore:
    store = ClickHouseStore.open(f"chdb://{folder}")
    store.migrate()
    return store


def write_until_killed(folder: str) -> None:
    store = opened(folder)
    number = len(points(store))
    while True:
        store.write([one(number)], f"token {number}")
        say(number)
        number += 1


def points(store: ClickHouseStore) -> list[float]:
    found = store.series("c", "m", ["gpu_power_watts"], T0, T0 + 10_000, 1)
    return [float(value) for _, value in found.points.get((GPU.key, "gpu_power_watts"), [])]


def read(folder: str) -> None:
    store = opened(folder)
    say(points(store))
    say({name: stats.rows for name, stats in store.stats().items()})
    store.write([one(9_000)], "token 0")  # a token of the process that was killed
    say(store.stats()["samples"].rows)
    (stored,) = store.latest("c", "m")
    say(stored.sample.values["gpu_name"])
    store.close()
    store.close()
    try:
        store.latest("c", "m")
    except StoreError as error:
        say(str(error))


def try_to_open(folder: str) -> None:
    try:
        ClickHouseStore.open(f"chdb://{folder}")
    except StoreError as error:
        say(str(error))


def upgrade(folder: str) -> None:
    """A folder made with an older catalogue, brought forward; then one that a newer build made."""
    older = [metric for metric in CORE_METRICS if metric is not CATALOGUE["gpu_power_watts"]]
    dsn = parse_dsn(f"chdb://{folder}")
    handles = Handles(dsn, connector(dsn))
    for table in (MIGRATIONS, *tables(older)):
        handles.writer.command(render_create(table))
    handles.writer.command("INSERT INTO schema_migrations VALUES (2, 5, now(), ['all of it'])")
    handles.writer.command(
        "INSERT INTO latest (cluster, machine, reader, lane, provenance, measured_at, received_at, float_ids, "
        "float_values) VALUES ('c', 'm', 'host', 'fast', 'host_local_probe', 1, 1, "
        f"[{CATALOGUE['host_load_1m'].id}], [0.5])"
    )
    handles.close()
    store = opened(folder)
    store.write([one(1)], "t")
    say([stored.sample.values for stored in store.latest("c", "m")])
    store.close()
    handles = Handles(dsn, connector(dsn))
    say(migrate(handles.writer, every_table(), dsn.engine))
    say(handles.writer.query("SELECT length(statements) FROM schema_migrations ORDER BY applied_at").result_columns[0])
    handles.writer.command("INSERT INTO schema_migrations VALUES (1000, 1000, now(), [])")
    handles.close()
    try:
        opened(folder)
    except StoreError as error:
        say(str(error))


def upgrade_version_1(folder: str) -> None:
    """A folder of schema version 1, whose server computed what makes a sample the newest."""
    dsn = parse_dsn(f"chdb://{folder}")
    handles = Handles(dsn, connector(dsn))
    for statement in VERSION_1.read_text().split(";\n"):
        if statement.strip():
            handles.writer.command(statement)
    handles.writer.command("INSERT INTO schema_migrations VALUES (1, 1, now(), ['all of it'])")
    for machine, at in (("m", T0 + 50), ("other", T0 + 50)):
        handles.writer.command(
            "INSERT INTO latest (cluster, machine, reader, lane, provenance, measured_at, received_at, host_load_1m) "
            f"SELECT 'c', '{machine}', 'host', 'fast', 'host_local_probe', fromUnixTimestamp64Nano({at}), "
            f"fromUnixTimestamp64Nano({T0 + 100}), 0.5"
        )
    handles.close()
    store = opened(folder)
    sample = Sample(view=None, reader="host", lane=Lane.FAST, measured_at=T0 - 9, values={"host_load_1m": 0.75})
    store.write([accept("c", "m", [sample], reported_at=T0 + 200)], "news, by a clock that was set back")
    store.write([accept("c", "other", [sample], reported_at=T0 + 20)], "backlog")
    say([store.latest("c", machine)[0].sample.values["host_load_1m"] for machine in ("m", "other")])
    store.close()
    handles = Handles(dsn, connector(dsn))
    told = "SELECT name FROM system.tables WHERE engine_full LIKE '%min_parts_to_merge_at_once = 8%' ORDER BY name"
    say([name for (name,) in handles.writer.query(told).result_rows])
    say(migrate(handles.writer, every_table(), dsn.engine))
    say(handles.writer.query("SELECT max(version) FROM schema_migrations").result_rows[0][0])
    handles.close()


def upgrade_version_2(folder: str) -> None:
    """A folder of schema version 2, which had no minutes and hours, with samples of two hours in it."""
    dsn = parse_dsn(f"chdb://{folder}")
    handles = Handles(dsn, connector(dsn))
    for statement in VERSION_2.read_text().split(";\n"):
        if statement.strip():
            handles.writer.command(statement)
    handles.writer.command(render_create(MIGRATIONS))
    handles.writer.command("INSERT INTO schema_migrations VALUES (2, 6, now(), ['all of it'])")
    handles.writer.command(
        "INSERT INTO samples (cluster, machine, reader, lane, provenance, measured_at, received_at, host_load_1m) "
        "SELECT 'c', 'm', 'host', 'fast', 'host_local_probe', fromUnixTimestamp64Nano(toInt64(number * 1800e9 + "
        f"{T0 // HOUR_NS * HOUR_NS})), now(), number FROM numbers(4)"
    )
    handles.close()
    store = opened(folder)
    rolled = iter(lambda: store.roll_up(time.time_ns() + 2 * HOUR_NS), None)
    say([(hour.start - T0 // HOUR_NS * HOUR_NS) // HOUR_NS for hour in rolled])
    found = store.series("c", "m", ["host_load_1m"], T0 // HOUR_NS * HOUR_NS, T0 + 10 * HOUR_NS, HOUR_NS)
    say([found.resolution, *(value for _, value in found.points[None, "host_load_1m"])])
    say(store.schema_version())
    writer = store._handles.writer
    for days in (10_000, LONGEST_DAYS, 0):
        store.migrate(Retention(raw_days=days, minute_days=days or LONGEST_DAYS, hour_days=0))
        told = "SELECT name, extract(engine_full, 'toIntervalDay[^ ]*') AS days FROM system.tables WHERE days != ''"
        say(sorted(writer.query(told).result_rows))
    for days in (LONGEST_DAYS, 25_000):
        store.migrate(Retention(raw_days=days, minute_days=days, hour_days=days))
        writer.command("INSERT INTO samples (cluster, machine, measured_at) SELECT 'c', 'm', now()")
        for table in ("samples", "windows_1m", "windows_1h", "usage_1h"):
            writer.command(f"OPTIMIZE TABLE {table} FINAL")  # what should go goes now
    say([writer.query(f"SELECT count() > 0 FROM {name}").result_rows[0][0] for name in ("samples", "windows_1h")])
    store.close()


def told_to_version_3(cluster: str) -> list[Accepted]:
    """Three reports of two machines: a value of every kind, gaps, a GPU that tells nothing, one report late."""
    whole: dict[str, Value | Absent] = {
        "gpu_utilization_ratio": 0.0,
        "gpu_ecc_corrected_errors_total": 2**63 + 5,
        "gpu_state": "hung",
        "gpu_bar1_used_bytes": 2**64 - 1,
        "gpu_jpeg_utilization_ratio": 0.125,
        "gpu_mig_mode": "enabled",
        "gpu_name": "NVIDIA H200",
        "gpu_power_watts": Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage"),
    }
    silent: dict[str, Value | Absent] = {"gpu_utilization_ratio": Absent(Reason.TIMEOUT), "gpu_state": "hung"}
    load: dict[str, Value | Absent] = {"host_load_1m": 0.5}

    def sample(view: View | None, number: int, values: dict[str, Value | Absent], lane: Lane = Lane.FAST) -> Sample:
        return Sample(view=view, reader="nvml", lane=lane, measured_at=T0 + number, values=values)

    other = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2")
    reports = (
        [sample(GPU, 1, whole), sample(other, 1, silent), sample(None, 1, load)],
        [sample(GPU, 3, {**whole, "gpu_utilization_ratio": 1.0}), sample(GPU, 3, load, Lane.SLOW)],
        [sample(GPU, 2, {**whole, "gpu_utilization_ratio": 0.5})],  # backlog, and of another machine the only one
    )
    order = (T0 + 1000, T0 + 3000, T0 + 2000)
    return [
        accept(cluster, machine, samples, reported_at=at, seq=seq)
        for seq, (samples, at) in enumerate(zip(reports, order, strict=True), 1)
        for machine in (("m", "n") if seq == 3 else ("m",))
    ]


def upgrade_version_3(folder: str) -> None:
    """A folder of schema version 3, whose `latest` had a column a metric."""
    _upgrade_version_3(folder, killed=False)


def upgrade_version_3_again(folder: str) -> None:
    """The same, by a process that was killed once the new table was there and had something new in it."""
    _upgrade_version_3(folder, killed=True)


def _upgrade_version_3(folder: str, *, killed: bool) -> None:
    dsn = parse_dsn(f"chdb://{folder}")
    handles = Handles(dsn, connector(dsn))
    for statement in VERSION_3.read_text().split(";\n"):
        if statement.strip():
            handles.writer.command(statement)
    handles.writer.command(render_create(MIGRATIONS))
    handles.writer.command("INSERT INTO schema_migrations VALUES (3, 6, now(), ['all of it'])")
    known = Known()
    for one in told_to_version_3("before"):
        of_build = {table.name: table for table in tables()}
        for name, columns in build([one], known).items():
            if name != "latest":
                handles.writer.insert_arrow(name, arrow_table(of_build[name], columns))
        handles.writer.command(
            f"INSERT INTO latest SELECT *, fromUnixTimestamp64Nano(toInt64({one.reported_at})) FROM samples "
            f"WHERE seq = {one.batch.seq} AND machine = '{one.machine_ids[0]}'"
        )
    if killed:
        set_aside(handles.writer)
        handles.writer.command(render_create(LATEST))
        handles.writer.command(render_fill(columns_of(handles.writer, [ASIDE])[ASIDE]))
    handles.close()
    store = opened(folder)
    for number, one in enumerate(told_to_version_3("after")):
        store.write([one], f"after {number}")
    for machine in ("m", "n"):
        before, after = store.latest("before", machine), store.latest("after", machine)
        used = [stored.sample.values.get("gpu_utilization_ratio") for stored in before]
        say([before == after, [value if isinstance(value, float) else None for value in used]])
    told = [sorted(store.standings(cluster, ["m", "n"]).items()) for cluster in ("before", "after")]
    say(told[0] == told[1])
    say(store.tellers_of_text("before", "gpu_name", "NVIDIA H200"))
    say(store.schema_version())
    say([name for (name,) in store._handles.reader.query("SHOW TABLES LIKE 'latest%'").result_rows])
    store.close()


def upgrade_version_5(folder: str) -> None:
    """A folder of schema version 5: `latest` was compressed as everything else, `dim_samples` had no numbers."""
    store = opened(folder)
    store.write([one(1)], "t")
    store.close()
    dsn = parse_dsn(f"chdb://{folder}")
    handles = Handles(dsn, connector(dsn))
    for column in LATEST.columns:
        handles.writer.command(f"ALTER TABLE latest MODIFY COLUMN `{column.name}` CODEC(ZSTD(1))")
    for name in ("epoch", "seq"):
        handles.writer.command(f"ALTER TABLE dim_samples DROP COLUMN {name}")
    say(migrate(handles.writer, every_table(), dsn.engine))
    say(migrate(handles.writer, every_table(), dsn.engine))
    codecs = "SELECT DISTINCT compression_codec FROM system.columns WHERE table = 'latest'"
    say(handles.writer.query(codecs).result_columns[0])
    handles.close()
    store = opened(folder)
    say([stored.sample.values for stored in store.latest("c", "m")])
    store.close()


def upgrade_rollups_of_version_3(folder: str) -> None:
    """A folder of schema version 3, with minutes and hours that had an array element for each metric."""
    dsn = parse_dsn(f"chdb://{folder}")
    handles = Handles(dsn, connector(dsn))
    for statement in VERSION_3.read_text().split(";\n"):
        if statement.strip():
            handles.writer.command(statement)
    handles.writer.command(render_create(MIGRATIONS))
    handles.writer.command("INSERT INTO schema_migrations VALUES (3, 7, now(), ['all of it'])")
    hour = T0 // HOUR_NS * 3600
    watts, bar1 = (CATALOGUE[name].id for name in ("gpu_power_watts", "gpu_bar1_used_bytes"))
    joules, replays = (CATALOGUE[name].id for name in ("gpu_energy_joules_total", "gpu_pcie_replays_total"))
    sent, mig, state = (CATALOGUE[name].id for name in ("gpu_pcie_transmit_bytes_total", "gpu_mig_mode", "gpu_state"))
    for table in ("samples_1m", "samples_1h"):
        for version, power in ((4, 1.0), (5, 300.5)):
            handles.writer.command(
                f"INSERT INTO {table} SELECT 'c', 'm', 'gpu/GPU-1', 'nvml', 'fast', 'host_local_probe', "
                f"toDateTime({hour}, 'UTC'), {version}, 4, "
                f"[{watts}, {bar1}], [{power}, 7], [400, 9], [1400, 24], [4, 3], "
                f"[{replays}, {sent}], [1, 5], [2, 6], [1, 3], [{joules}], [10], [30.5], [20.5], "
                f"[{state}, {mig}], [0, 1]"
            )
    for table in ("state_seconds_1m", "state_seconds_1h"):
        handles.writer.command(
            f"INSERT INTO {table} SELECT 'c', 'm', 'gpu/GPU-1', 'nvml', 'fast', 'host_local_probe', 'gpu_state', 'ok', "
            f"toDateTime({hour}, 'UTC'), 5, 60"
        )
    handles.writer.command(f"INSERT INTO rolled_hours VALUES (toDateTime({hour}, 'UTC'), 5, 0)")
    handles.close()
    for _ in range(2):
        store = opened(folder)
        say(store.schema_version())
        for table in ("windows_1m", "windows_1h"):
            told = (
                "samples, gpu_power_watts_min, gpu_power_watts_max, gpu_power_watts_avg, gpu_power_watts_count, "
                "host_load_1m_avg, host_load_1m_count, gpu_pcie_replays_total_last, gpu_pcie_replays_total_increase, "
                "gpu_energy_joules_total_last, gpu_energy_joules_total_increase, gpu_state_last, "
                "arrayFlatten([tail_gauge_min, tail_gauge_max, tail_gauge_avg]), tail_gauge_count, tail_counter_last, "
                "tail_counter_increase, tail_state_last"
            )
            say(store._handles.writer.query(f"SELECT {told} FROM {table} FINAL").result_rows)
        for table in ("state_windows_1m", "state_windows_1h"):
            say(store._handles.writer.query(f"SELECT metric, labels, state, seconds FROM {table} FINAL").result_rows)
        names = ["gpu_power_watts", "gpu_bar1_used_bytes", "gpu_energy_joules_total", "gpu_mig_mode"]
        start = hour * NANOS - 100 * 3600 * NANOS
        found = store.series("c", "m", names, start, start + 200 * 3600 * NANOS, HOUR_NS)
        say([found.resolution, *(points[0][1] for _, points in sorted(found.points.items()))])
        gone = "SELECT count() FROM system.tables WHERE name LIKE 'samples\\_1%' OR name LIKE 'state\\_seconds%'"
        say(store._handles.writer.query(gone).result_rows[0][0])
        store.close()


def fork(folder: str) -> None:
    store = opened(folder)
    warnings.simplefilter("ignore")  # that forking with threads is dangerous is what this shows
    child = os.fork()
    if child == 0:
        try:
            store.latest("c", "m")
        except StoreError as error:
            say(str(error))
        os._exit(0)
    os.waitpid(child, 0)
    store.close()


def without_libraries(folder: str) -> None:
    for name in ("chdb", "clickhouse_connect", "pyarrow"):
        sys.modules[name] = None  # type: ignore[assignment]  # what the import system does for "there is none"
    try_to_open(folder)


CHILDREN: dict[str, Callable[[str], None]] = {
    child.__name__: child
    for child in (
        write_until_killed,
        read,
        try_to_open,
        upgrade,
        upgrade_version_1,
        upgrade_version_2,
        upgrade_version_3,
        upgrade_rollups_of_version_3,
        upgrade_version_3_again,
        upgrade_version_5,
        fork,
        without_libraries,
    )
}

if __name__ == "__main__":
    CHILDREN[sys.argv[1]](sys.argv[2])
