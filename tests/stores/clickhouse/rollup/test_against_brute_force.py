"""Minutes and hours in the store against a brute-force computation: duplicate, late, reset and absent values, gaps."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, MetricKind, Storage, ValueType
from gpufleet.model.reading import Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.rollup import job
from gpufleet.stores.clickhouse.rollup.hours import HourMarks
from tests.stores.clickhouse.rollup import brute
from tests.stores.clickhouse.rollup.brute import HOUR, Measurement
from tests.support.accepted import accept
from tests.support.profiles import examples
from tests.support.subjects import SUBJECTS_OF_MACHINE, named

pytestmark = pytest.mark.costly

T0 = 1_710_000_000  # on the hour
GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
NAMES = {
    "watts": "gpu_power_watts",
    "busy": "gpu_utilization_ratio",
    "joules": "gpu_energy_joules_total",
    "errors": "gpu_ecc_corrected_errors_total",
    "state": "gpu_state",
    "bar1": "gpu_bar1_used_bytes",
    "mig": "gpu_mig_mode",
    "sent": "gpu_pcie_transmit_bytes_total",
}
COLUMNS = "used_seconds, idle_seconds, power_joules, power_seconds, energy_joules, energy_seconds"
_numbers = itertools.count()


def sample(measurement: Measurement, view: View = GPU) -> Sample:
    values: dict[str, Value | Absent] = {}
    for field, name in NAMES.items():
        value = getattr(measurement, field)
        values[name] = Absent(Reason.TIMEOUT, "") if value is None else value
    return Sample(
        view=view,
        reader="nvml",
        lane=Lane.FAST,
        measured_at=(T0 + measurement.at) * NANOS,
        values=values,
        driver_session=measurement.session,
    )


def write(
    store: ClickHouseStore, cluster: str, measurements: Sequence[Measurement], machine: str = "m", view: View = GPU
) -> None:
    if not measurements:
        return
    by_number: dict[int, list[Measurement]] = {}
    for one in measurements:
        by_number.setdefault(one.seq, []).append(one)
    batches = [
        accept(cluster, machine, [sample(one, view) for one in mine], seq=seq or 1) for seq, mine in by_number.items()
    ]
    store.write(batches, f"{cluster}-{next(_numbers)}")


def roll(store: ClickHouseStore) -> list[int]:
    """Compute all due hours. Return them as offsets from the first hour, recomputed hours negative."""
    return [
        (-1 if hour.again else 1) * (hour.start // NANOS - T0 + HOUR) // HOUR
        for hour in iter(lambda: store.roll_up(time.time_ns() + 3600 * NANOS), None)
    ]


def rows(store: ClickHouseStore, table: str, columns: str, cluster: str, machine: str) -> list[tuple[object, ...]]:
    return list(
        store._handles.reader.query(
            f"SELECT toInt64(toUnixTimestamp(at)) - {T0}, {columns} FROM {table} FINAL "
            f"WHERE {SUBJECTS_OF_MACHINE} AND (toStartOfHour(at), version) IN "
            "(SELECT hour, max(version) FROM rolled_hours GROUP BY hour) ORDER BY at",
            parameters={"cluster": cluster, "machine": machine},
        ).result_rows
    )


PARTS = {"gauge": ("min", "max", "avg", "count"), "counter": ("last", "increase"), "state": ("last",)}


def measured(store: ClickHouseStore, table: str, cluster: str, machine: str) -> dict[str, dict[object, object]]:
    """Return the content of a table for each field, by the start of the window, read in one query."""
    metrics = {field: CATALOGUE[name] for field, name in NAMES.items()}
    columns = [f"{one.name}_{part}" for one in metrics.values() if _is_core(one) for part in PARTS[one.kind.value]]
    tails = sorted({one.kind.value for one in metrics.values() if not _is_core(one)})
    columns += [f"tail_{kind}_{part}" for kind in tails for part in ("ids", *PARTS[kind])]
    found: dict[str, dict[object, object]] = {field: {} for field in NAMES}
    for at, *cells in rows(store, table, ", ".join(columns), cluster, machine):
        row: dict[str, Any] = dict(zip(columns, cells, strict=True))
        for field, metric in metrics.items():
            kind = metric.kind.value
            if _is_core(metric):
                values = tuple(row[f"{metric.name}_{part}"] for part in PARTS[kind])
                if values[0] is not None:
                    found[field][at] = values
            elif metric.id in row[f"tail_{kind}_ids"]:
                place = list(row[f"tail_{kind}_ids"]).index(metric.id)
                found[field][at] = tuple(row[f"tail_{kind}_{part}"][place] for part in PARTS[kind])
    return found


def _is_core(metric: Metric) -> bool:
    return metric.storage is Storage.CORE


def expected_of(measurements: Sequence[Measurement], field: str, window: int) -> dict[object, object]:
    metric = CATALOGUE[NAMES[field]]
    if metric.kind is MetricKind.GAUGE:
        return {
            at: pytest.approx((low, high, total / count, count))
            for at, (low, high, total, count) in brute.gauges(measurements, field, window).items()
        }
    if metric.kind is MetricKind.STATE:
        last = {
            one.at // window * window: getattr(one, field) for one in measurements if getattr(one, field) is not None
        }
        return {at: (metric.states.index(state),) for at, state in last.items()}
    hours = sorted({one.at // HOUR * HOUR for one in measurements})
    exact = metric.type is ValueType.INT
    return {
        at: parts if exact else pytest.approx(parts, rel=1e-6)
        for hour in hours
        for at, parts in brute.counters(measurements, field, window, hour).items()
    }


def check(
    store: ClickHouseStore,
    cluster: str,
    measurements: Sequence[Measurement],
    machine: str = "m",
    *,
    minutes: bool = True,
) -> None:
    """Compare all stored aggregates of a device with the expected ones."""
    for table, window in (("1m", 60), ("1h", HOUR)):
        shown = measurements if minutes or table == "1h" else []
        found = measured(store, f"windows_{table}", cluster, machine)
        assert found == {field: expected_of(shown, field, window) for field in NAMES}
        assert {
            (at, metric, state): seconds
            for at, metric, state, seconds in rows(
                store, f"state_windows_{table}", "metric, state, seconds", cluster, machine
            )
        } == {
            (at, NAMES[field], state): pytest.approx(seconds)
            for field in ("state", "mig")
            for (at, state), seconds in brute.states(shown, field, window).items()
        }
    used = {at: tuple(sums) for at, *sums in rows(store, "usage_1h", COLUMNS, cluster, machine)}
    for hour in range(-HOUR, 3 * HOUR, HOUR):
        sums = tuple(brute.usage(measurements, hour, hour + HOUR).values())
        assert used.get(hour, (0.0,) * 6) == pytest.approx(sums, abs=1e-6)


def maybe(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.none(), values)


readings = st.lists(
    st.builds(
        Measurement,
        at=st.integers(0, 2 * HOUR - 1),
        watts=maybe(st.sampled_from([0.0, 100.0, 333.25])),
        busy=maybe(st.sampled_from([0.0, 0.009, 0.01, 1.0])),
        joules=maybe(st.integers(0, 10**9).map(float)),
        errors=maybe(st.sampled_from([0, 5, 2**53 + 1])),
        state=maybe(st.sampled_from(["ok", "lost"])),
        bar1=maybe(st.sampled_from([0, 7, 2**40])),
        mig=maybe(st.sampled_from(["enabled", "disabled"])),
        sent=maybe(st.integers(0, 2**40)),
        session=st.sampled_from([0, 7, 7, 8]),
    ),
    unique_by=lambda one: one.at,
    min_size=1,
    max_size=30,
).map(lambda measurements: sorted(measurements, key=lambda one: one.at))


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[Measurement], list[Measurement], list[Measurement]]:
    """Return measurements, those that arrive first, and those that arrive later: the others and some duplicates."""
    measurements = draw(readings)
    when = draw(
        st.lists(st.sampled_from(["first", "late", "twice"]), min_size=len(measurements), max_size=len(measurements))
    )
    first = [one for one, arrival in zip(measurements, when, strict=True) if arrival != "late"]
    later = [one for one, arrival in zip(measurements, when, strict=True) if arrival != "first"]
    return measurements, first, later


@pytest.mark.timeout(600)
@settings(max_examples=examples(1, 5), deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(fleet=st.lists(arrivals(), min_size=10, max_size=10))
def test_any_arrival_order_matches_the_brute_force(
    store: ClickHouseStore, fleet: list[tuple[list[Measurement], list[Measurement], list[Measurement]]]
) -> None:
    """Ten devices at a time, each on its own machine."""
    cluster = f"brute-{next(_numbers)}"
    for number, (_, first, _) in enumerate(fleet):
        write(store, cluster, first, f"m{number}")
    roll(store)
    for number, (_, first, _) in enumerate(fleet):
        check(store, cluster, first, f"m{number}")
    for number, (_, _, later) in enumerate(fleet):
        write(store, cluster, later, f"m{number}")
    roll(store)
    for number, (measurements, _, _) in enumerate(fleet):
        check(store, cluster, measurements, f"m{number}")
    assert roll(store) == []


def test_two_dense_hours_with_a_gap_match_the_brute_force(store: ClickHouseStore, cluster: str) -> None:
    measurements = [
        Measurement(
            at=at,
            watts=200.0,
            busy=(at // 600) % 2 * 0.5,
            joules=float(at * 200 % 500_000),
            errors=at // 1000,
            state="ok",
        )
        for at in range(0, 2 * HOUR, 10)
        if not 1000 <= at < 2800
    ]
    write(store, cluster, measurements)
    roll(store)
    check(store, cluster, measurements)


def test_late_rows_recompute_their_hour_and_its_neighbours(store: ClickHouseStore, cluster: str) -> None:
    middle = [Measurement(at=at, watts=100.0, state="ok") for at in (1700, 1800, 1900)]
    write(store, cluster, middle)
    roll(store)
    write(store, cluster, [Measurement(at=1850, watts=300.0, state="lost")])
    assert roll(store) == [-1]
    assert roll(store) == []
    check(store, cluster, sorted([*middle, Measurement(at=1850, watts=300.0, state="lost")], key=lambda one: one.at))
    write(store, cluster, [Measurement(at=3590, watts=50.0, state="ok")])
    assert {abs(hour) for hour in roll(store)} == {1, 2}  # its state extends into the next hour


def test_partially_computed_hour_is_not_shown(
    store: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements = [Measurement(at=at, watts=100.0) for at in range(1800, 2100, 60)]
    roll(store)
    for machine in ("m", "n"):
        write(store, cluster, measurements, machine)
    monkeypatch.setattr(job, "ROWS_PER_CHUNK", 5)  # so that each subject is a chunk of its own
    monkeypatch.setattr(job, "SUBJECTS_PER_BLOCK", 1)

    def made() -> set[str]:
        query = f"SELECT machine FROM {named('windows_1m')} WHERE cluster = {{cluster:String}}"
        return {
            machine for (machine,) in store._handles.reader.query(query, parameters={"cluster": cluster}).result_rows
        }

    assert store.roll_up(time.time_ns() + 3600 * NANOS, lambda: bool(made())) is None
    assert made() == {"m"}
    assert rows(store, "windows_1m", "samples", cluster, "m") == []
    roll(store)
    check(store, cluster, measurements, "m")
    check(store, cluster, measurements, "n")


def test_hour_is_computed_when_it_is_over_and_quiet(store: ClickHouseStore, cluster: str) -> None:
    roll(store)
    write(store, cluster, [Measurement(at=1800, watts=1.0)])
    assert store.roll_up((T0 + HOUR - 1) * NANOS) is None
    assert store.roll_up(time.time_ns()) is None  # written to a moment ago
    assert [abs(hour) for hour in roll(store)] == [1]


def test_backfilled_hours_are_recomputed_once(store: ClickHouseStore, cluster: str) -> None:
    hours = range(5, 11)  # around midnight, so in two partitions
    day = [Measurement(at=hour * HOUR + 1800, watts=100.0) for hour in hours]
    late = [Measurement(at=hour * HOUR + 1830, watts=300.0) for hour in hours]
    write(store, cluster, day)
    roll(store)
    write(store, cluster, late[:3])
    store._marks = HourMarks()  # as after a restart
    write(store, cluster, late[3:])
    write(store, cluster, late)  # a replay marks nothing again
    assert roll(store) == [-(hour + 1) for hour in hours]
    assert roll(store) == []
