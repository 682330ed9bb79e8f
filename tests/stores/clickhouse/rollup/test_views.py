"""SQL views of minutes and hours."""

import math

import msgspec
import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.stores.clickhouse.rollup import test_dims as dims
from tests.stores.clickhouse.rollup.brute import HOUR, Measurement
from tests.stores.clickhouse.rollup.test_against_brute_force import (
    GPU,
    NAMES,
    T0,
    check,
    expected_of,
    roll,
    sample,
    write,
)
from tests.support.accepted import accept

MEASUREMENTS = [
    Measurement(
        at=0, watts=300.5, busy=0.65, joules=1000.0, errors=1, state="ok", bar1=2**53 + 1, mig="enabled", sent=7
    ),
    Measurement(at=15, watts=None, busy=0.05, joules=1500.0, errors=4, state="hung", bar1=None, mig="disabled", sent=9),
    Measurement(at=75, watts=100.5, busy=0.0, joules=1800.0, errors=4, state="ok", bar1=12, mig="disabled", sent=2**60),
]
PARTS = {
    "watts": "gauge",
    "busy": "gauge",
    "bar1": "gauge",
    "joules": "counter",
    "errors": "counter",
    "sent": "counter",
}
COLUMNS = {"gauge": ("min", "max", "avg", "count"), "counter": ("last", "increase")}
AT = f"toInt64(toUnixTimestamp(at)) - {T0}"


@pytest.mark.parametrize(("span", "window"), [("minute", 60), ("hour", HOUR)])
def test_windows_of_samples(store: ClickHouseStore, cluster: str, span: str, window: int) -> None:
    write(store, cluster, MEASUREMENTS)
    roll(store)
    check(store, cluster, MEASUREMENTS)  # the tables below the views
    for field, kind in PARTS.items():
        columns = ", ".join(f"{NAMES[field]}_{part}" for part in COLUMNS[kind])
        rows = store.select(f"SELECT {AT}, {columns} FROM fleet_{span}s WHERE cluster = '{cluster}'").rows
        assert {at: tuple(parts) for at, *parts in rows if parts[0] is not None} == expected_of(
            MEASUREMENTS, field, window
        )
    found = store.select(
        f"SELECT {AT}, samples, gpu_state_last, gpu_mig_mode_last, gpu_memory_used_bytes_avg, "
        f"gpu_pcie_replays_total_last FROM fleet_{span}s WHERE cluster = '{cluster}' ORDER BY at"
    ).rows
    last = [(0, 2, "hung", "disabled", None, None), (60, 1, "ok", "disabled", None, None)]
    assert found == (last if span == "minute" else [(0, 3, "ok", "disabled", None, None)])
    rows = store.select(
        f"SELECT {AT}, state, seconds FROM fleet_state_{span}s WHERE cluster = '{cluster}' AND metric = 'gpu_state' "
        "ORDER BY at, state"
    ).rows
    assert rows[0] == (0, "hung", 45.0 if span == "minute" else pytest.approx(60.0))


def test_windows_with_an_ambiguous_zero_have_no_mean(store: ClickHouseStore, cluster: str) -> None:
    """A scrape every 20 s: a GPU that computes in all, then in one of three, then in none; and later in all."""
    names = ("gpu_utilization_ratio", "gpu_memory_used_bytes")
    samples = []
    for at in range(0, 12 * HOUR, 20):
        busy: tuple[Value, Value] = (0.5, 2**40)
        is_busy = at < 600 or at >= HOUR or (at < 1200 and at % 60 == 20)
        values = dict(zip(names, busy if is_busy else (Absent(Reason.AMBIGUOUS_ZERO),) * 2, strict=True))
        one = msgspec.structs.replace(sample(Measurement(at=at)), values=values, provenance=Provenance.IMPORTED)
        samples.append(one)
    store.write([accept(cluster, "m", samples)], cluster)
    roll(store)
    for step, first in ((300, 600), (HOUR, 0)):
        window = T0 * NANOS, (T0 + 12 * HOUR) * NANOS, step * NANOS
        found = store.series(cluster, "m", names, *window, Provenance.IMPORTED)
        assert found.resolution is (Resolution.HOUR if step == HOUR else Resolution.MINUTE)
        idle = range(first, HOUR, step)
        for name, value in zip(names, busy, strict=True):
            expected = [((T0 + at) * NANOS, value) for at in range(0, 12 * HOUR, step) if at not in idle]
            assert found.points[GPU.key, name] == expected
            reasons = {(T0 + at) * NANOS: Reason.AMBIGUOUS_ZERO for at in idle}
            assert found.absences[GPU.key, name] == reasons
    for name, value in zip(names, busy, strict=True):
        columns = ", ".join(f"{name}_{part}" for part in COLUMNS["gauge"])
        where = f"WHERE cluster = '{cluster}' AND at IN ({T0}, {T0 + 600}, {T0 + 1200}) ORDER BY at"
        whole, part, none = store.select(f"SELECT {columns} FROM fleet_minutes {where}").rows
        assert whole == (value, value, value, 3)
        assert (part[:2], none[:2]) == ((value, value), (None, None))
        assert [math.isnan(row[2]) for row in (part, none)] == [True, True]
        (hour,) = store.select(f"SELECT {columns} FROM fleet_hours WHERE cluster = '{cluster}' AND at = {T0}").rows
        assert (hour[:2], math.isnan(hour[2])) == ((value, value), True)


@pytest.mark.parametrize("goes_on", [False, True])
def test_state_that_a_reader_reports_no_more_does_not_count(
    store: ClickHouseStore, cluster: str, goes_on: bool
) -> None:
    """DCGM reads a lost GPU for ten minutes, and then nothing or other readings. NVML goes on."""
    times = range(0, 12 * HOUR, 60)
    nvml = [sample(Measurement(at=at, state="lost" if at < 600 else "ok")) for at in times]
    dcgm = [sample(Measurement(at=at, state="lost") if at < 600 else Measurement(at=at, watts=90.0)) for at in times]
    dcgm = [msgspec.structs.replace(one, reader="dcgm") for one in dcgm[: len(times) if goes_on else 10]]
    store.write([accept(cluster, "m", [*nvml, *dcgm])], cluster)
    roll(store)
    for step, lost in ((300, [0, 300]), (HOUR, [])):
        window = T0 * NANOS, (T0 + 12 * HOUR) * NANOS, step * NANOS
        found = store.series(cluster, "m", ["gpu_state"], *window)
        assert found.resolution is (Resolution.HOUR if step == HOUR else Resolution.MINUTE)
        states = found.points[GPU.key, "gpu_state"]
        assert [at // NANOS - T0 for at, state in states if state != "ok"] == lost


@pytest.mark.parametrize("span", ["minute", "hour"])
def test_windows_of_values_with_dimensions(store: ClickHouseStore, cluster: str, span: str) -> None:
    measurements = [
        dims.Measurement(at=0, values={0: 2**60 + 1, 3: 1.5, 4: 8, 5: "running"}),
        dims.Measurement(at=30, values={0: 2**60 + 5, 3: 4.0, 4: 10, 5: "failed"}),
    ]
    store.write([accept(cluster, "m", [dims.sample(one) for one in measurements])], cluster)
    roll(store)
    rows = store.select(
        f"SELECT metric, labels, {AT}, min, max, avg, count, last, last_integer, increase, increase_integer "
        f"FROM fleet_dimension_{span}s WHERE cluster = '{cluster}'"
    ).rows
    found = {(metric, tuple(labels)): tuple(rest) for metric, labels, *rest in rows}
    assert found == {
        dims.SERIES[0]: (0, None, None, None, 2, float(2**60 + 5), 2**60 + 5, 4.0, 4),
        dims.SERIES[3]: (0, None, None, None, 2, 4.0, None, 2.5, None),
        dims.SERIES[4]: (0, 8.0, 10.0, 9.0, 2, None, None, None, None),
        dims.SERIES[5]: (0, None, None, None, 2, None, None, None, None),
    }


def test_rows_of_an_unfinished_attempt_are_not_shown(store: ClickHouseStore, cluster: str) -> None:
    write(store, cluster, MEASUREMENTS)
    roll(store)
    writer = store._handles.writer
    writer.command(f"INSERT INTO subjects (number, cluster, machine) VALUES (1, '{cluster}', 'cut')")
    for table in ("windows_1h", "dim_windows_1h", "state_windows_1h"):
        writer.command(f"INSERT INTO {table} (subject, at, version) VALUES (1, toDateTime({T0}), 1)")
        view = f"fleet_{table.removesuffix('windows_1h').replace('dim_', 'dimension_')}hours"
        assert store.select(f"SELECT 1 FROM {view} WHERE cluster = '{cluster}' AND machine = 'cut'").rows == []
