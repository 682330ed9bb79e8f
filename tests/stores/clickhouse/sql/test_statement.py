"""SQL statements of users: what they can read, and that they cannot do anything else."""

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.errors import SqlError
from gpufleet.model.event import Event
from gpufleet.model.reading import Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.accepted import accept
from tests.support.passes import gpu

T0 = 1_700_000_000 * NANOS
CHILD = Path(__file__).with_name("sql_child.py")


def test_every_view_has_its_declared_columns(store: ClickHouseStore) -> None:
    for view in store.sql_views():
        found = store.select(f"SELECT * FROM {view.name} LIMIT 1")
        assert found.columns == tuple(column.name for column in view.columns), view.name
        assert len(found.types) == len(found.columns)
        assert all(column.help for column in view.columns)


def test_latest_and_samples_have_the_same_types(store: ClickHouseStore) -> None:
    latest, samples = (store.select(f"SELECT * FROM {view} LIMIT 1") for view in ("fleet_latest", "fleet_samples"))
    types = dict(zip(samples.columns, samples.types, strict=True))
    assert [name for name in samples.columns if name not in latest.columns] == ["epoch", "seq"]
    assert latest.types == tuple(types[name] for name in latest.columns)


def test_outer_join_has_no_values_without_a_match(store: ClickHouseStore, cluster: str) -> None:
    sample = Sample(view=gpu(0), reader="nvml", lane=Lane.FAST, measured_at=T0, values={"gpu_power_watts": 1.0})
    store.write([accept(cluster, "m", [sample])], cluster)
    found = store.select(
        "SELECT holders.kind, holders.replicas, holders.labels, hours.at, hours.samples FROM fleet_devices AS devices "
        "LEFT JOIN fleet_holders AS holders USING (cluster, machine, view) "
        f"LEFT JOIN fleet_hours AS hours USING (cluster, machine, view) WHERE devices.cluster = '{cluster}'"
    )
    assert found.rows == [(None, None, {}, None, None)]


def test_views_show_values_states_absences_texts_and_events(store: ClickHouseStore, cluster: str) -> None:
    values: dict[str, Value | Absent] = {
        "gpu_power_watts": 312.5,
        "gpu_memory_used_bytes": 2**53 + 1,
        "gpu_bar1_used_bytes": 2**53 + 3,
        "gpu_state": "hung",
        "gpu_persistence_mode": CATALOGUE["gpu_persistence_mode"].states[1],
        "gpu_encoder_utilization_ratio": 0.25,
        "gpu_name": "H200",
        "gpu_temperature_celsius": Absent(Reason.DRIVER_ERROR, "its message"),
    }
    sample = Sample(view=gpu(0), reader="nvml", lane=Lane.FAST, measured_at=T0 + 1_234_567_891, values=values)
    for seq in (1, 2):  # stored twice, shown once
        store.write([accept(cluster, "m", [sample], seq=seq)], f"{cluster}-{seq}")
    event = Event(view=gpu(0), kind="xid", code=79, at=T0, attributes={"name": "fell"})
    store.write([accept(cluster, "m", part=MachinePart(machine=0, events=[event]), seq=3)], f"{cluster}-3")
    names = ", ".join(name for name in values if name != "gpu_name")
    for view in ("fleet_latest", "fleet_samples"):
        found = store.select(f"SELECT measured_at, {names} FROM {view} WHERE cluster = '{cluster}'")
        (row,) = found.rows
        assert row[0] == dt.datetime(2023, 11, 14, 22, 13, 21, 234567, dt.UTC)
        shown = dict(zip(found.columns[1:], row[1:], strict=True))
        assert shown == {**{k: v for k, v in values.items() if k != "gpu_name"}, "gpu_temperature_celsius": None}
    where = f"WHERE cluster = '{cluster}'"
    (absence,) = store.select(f"SELECT metric, reason, detail FROM fleet_absences {where}").rows
    assert absence == ("gpu_temperature_celsius", "driver_error", "its message")
    assert store.select(f"SELECT metric, text FROM fleet_texts {where}").rows == [("gpu_name", "H200")]
    (shown_event,) = store.select(f"SELECT view, kind, code, attributes['name'] FROM fleet_events {where}").rows
    assert shown_event == (gpu(0).key, "xid", 79, "fell")
    (device,) = store.select(f"SELECT view, kind, uuid FROM fleet_devices {where} AND reader = 'nvml'").rows
    assert device == (gpu(0).key, "gpu", gpu(0).uuid)


ACCEPTED = (
    "select count() as events from fleet_events where kind = 'xid' and code in (79, 31) order by events",
    "with a as (select machine from fleet_latest) select 1 from a where machine in (select machine from fleet_buses)",
    "select avgIf(gpu_power_watts, lane = 'fast') over (partition by machine order by measured_at) from fleet_samples",
    "select 1 union all select 2 -- and a comment",
    "select a.machine from fleet_latest a join fleet_devices b using (cluster, machine, view) limit 1 by a.machine",
    "select toStartOfHour(at) as h, quantile(0.9)(code) from fleet_events where at > now() - interval 1 day group by h",
    "select seq, count() from fleet_samples group by all having count() > 1 order by seq desc limit 3",
    "select uuid, case when index > 1 then 'a' else 'b' end from fleet_devices where uuid like 'GPU-%' /* x */",
    "select 'file(''/etc/passwd''); drop table samples', cast(1 as String), date '2026-01-01', [1, 2][1]",
    "(select 1) intersect (select 1)",
)


@pytest.mark.parametrize("statement", ACCEPTED)
def test_typical_statements_are_answered(store: ClickHouseStore, statement: str) -> None:
    assert store.select(statement).columns


@pytest.mark.parametrize(
    ("expression", "cell"),
    [
        ("[cast('10.0.0.1' as IPv4)]", ["10.0.0.1"]),
        ("tuple(cast('61f0c404-5cb3-11e7-907b-a6006ad3dba0' as UUID))", ["61f0c404-5cb3-11e7-907b-a6006ad3dba0"]),
        ("map((1, 2), [cast(1.5 as Decimal(9, 1))])", {"[1, 2]": ["1.5"]}),
        ("map(toDate('2026-01-02'), toDateTime('2026-01-02 03:04:05'))", {"2026-01-02": "2026-01-02T03:04:05Z"}),
        ("cast('abc' as FixedString(3))", "abc"),
        ("[cast('abc' as FixedString(3))]", ["abc"]),
        ("cast('340282366920938463463374607431768211455' as UInt256)", 2**128 - 1),
    ],
)
def test_every_kind_of_cell_can_be_written_as_json(store: ClickHouseStore, expression: str, cell: object) -> None:
    assert json.loads(msgspec.json.encode(store.select(f"select {expression} as a").rows)) == [[cell]]


REFUSED = (
    *(
        line
        for line in CHILD.with_name("sql_refused.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ),
    "",
    " \n",
    "-- nothing",
    "\0",
    "x" * 20_000,
    "select 1 as `x\ny`",
    f"select {'(' * 300}1{')' * 300}",
    f"select {'+'.join(['1'] * 3000)}",
    f"select {'not ' * 1000}1",
    f"select {'[' * 500}{']' * 500}",
    f"select * from {'(select * from ' * 50}fleet_events{')' * 50}",
    f"with 'x' as a0, {', '.join(f'concat(a{n}, a{n}) as a{n + 1}' for n in range(40))} select length(a40)",
)
"""Statements that are refused."""


def rows_of(store: ClickHouseStore) -> dict[str, int]:
    """Return the physical rows of each table."""
    return {name: stats.rows for name, stats in store.stats().items()}


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_statement_has_no_effect(store: ClickHouseStore, tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    statement = REFUSED[number].replace("{out}", str(out))
    before = rows_of(store)
    with pytest.raises(SqlError) as refused:
        store.select(statement)
    assert 3 < len(str(refused.value)) < 1000
    assert "passwd:" not in str(refused.value)
    assert not out.exists()
    after = rows_of(store)
    assert after.keys() == before.keys()
    assert all(after[name] <= before[name] for name in before)  # a merge between the counts removes replaced rows
    assert store.select("SELECT 1 AS a").rows == [(1,)]  # the handle still works


def test_restricted_handle_is_read_only(store: ClickHouseStore, tmp_path: Path) -> None:
    """The engine's own limits apply to a statement that passes the parser."""
    handle = store._handles.restricted({})
    for statement in (
        "CREATE TABLE x (a Int8) ENGINE = Memory", "INSERT INTO samples (seq) VALUES (1)", "DROP TABLE samples",
        "SET readonly = 0", "SET max_execution_time = 0", "SELECT 1 SETTINGS max_threads = 9",
        "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a String')", "SELECT * FROM file('/x', 'LineAsString')",
        f"INSERT INTO FUNCTION file('{tmp_path}/x', 'CSV') SELECT 1", "SYSTEM FLUSH LOGS",
    ):  # fmt: skip
        with pytest.raises(Exception, match=r"(?i)readonly"):
            handle.command(statement)


class Result(msgspec.Struct):
    message: str
    rows: int
    peak_kib: int


def test_heavy_statement_is_ended_and_the_process_survives(tmp_path: Path) -> None:
    """Limits of the child: 1 s, 100 MB, 1,000 rows, 1 MB of result; 200,000 rows to read."""
    many = "fleet_events a cross join fleet_events b cross join fleet_events c"
    nested = "arrayMap(x -> arrayMap(y -> arrayMap(z -> x + y + z, g), g), g)"
    late, large, long = "Timeout exceeded", "memory limit exceeded", "Limit for result exceeded"
    heavy = {
        f"select count() from {many}": (late,),
        f"select max(length(concat(a.machine, b.machine))) from {many}": (late,),
        f"select groupArray(concat(a.machine, b.machine)) from {many}": (large, late),
        "select a.at, groupArray(b.attributes) from fleet_events a cross join fleet_events b group by a.at": (
            large,
            late,
        ),
        "select at from fleet_events": (long,),
        "select groupArray(toString(at)) from fleet_events": (long,),
        f"select {nested} from (select groupArray(code) as g from fleet_events)": (large, late),
        "select code from fleet_events order by code with fill to 100000000000": (long, late, large),
    }
    statements = [*heavy, "select count() from fleet_events"]
    done = subprocess.run(
        [sys.executable, CHILD, tmp_path], input=json.dumps(statements), capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    results = msgspec.json.decode(done.stdout, type=list[Result])
    for statement, result in zip(statements, results, strict=True):
        if statement in heavy:
            assert pytest.approx(0) == result.rows, statement
            assert any(cause.lower() in result.message.lower() for cause in heavy[statement]), (
                statement,
                result.message,
            )
        assert result.peak_kib < 1_000_000, (statement, result.peak_kib)
    assert results[-1].rows == 1, results[-1].message
