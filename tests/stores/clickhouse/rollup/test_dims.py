"""Minutes and hours of values with dimensions against a brute-force computation."""

import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.stores.clickhouse.rollup.brute import HOUR, MAX_GAP_SECONDS, VALID_SECONDS
from tests.stores.clickhouse.rollup.test_against_brute_force import GPU, T0, _numbers, roll
from tests.support.accepted import accept
from tests.support.profiles import examples
from tests.support.subjects import SUBJECTS_OF_CLUSTER, SUBJECTS_OF_MACHINE

pytestmark = pytest.mark.costly

SERIES = (
    ("gpu_nvlink_link_transmit_bytes_total", ("0",)),
    ("gpu_nvlink_link_transmit_bytes_total", ("1",)),
    ("gpu_sram_errors_total", ("corrected", "sec_ded")),  # reset by the driver
    ("host_cpu_seconds_total", ("0", "user")),
    ("host_filesystem_size_bytes", ("/", "ext4")),
    ("host_service_state", ("slurmd.service",)),
)


class Measurement(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A sample: its value of each series. Other series are absent with a reason if `absent` is set."""

    at: int
    values: Mapping[int, Value]
    session: int = 0
    absent: bool = False


def sample(measurement: Measurement) -> Sample:
    dims = [DimValue(SERIES[number][0], SERIES[number][1], value) for number, value in measurement.values.items()]
    if measurement.absent:
        missing = (one for number, one in enumerate(SERIES) if number not in measurement.values)
        dims += [DimValue(one[0], one[1], Absent(Reason.TIMEOUT, "")) for one in missing]
    at = (T0 + measurement.at) * NANOS
    return Sample(
        view=GPU,
        reader="nvml",
        lane=Lane.FAST,
        measured_at=at,
        values={},
        dims=tuple(dims),
        driver_session=measurement.session,
    )


def expected(measurements: Sequence[Measurement], number: int, window: int) -> dict[int, tuple[object, ...]]:
    """Return (min, max, mean, count, last, increase) by window. Parts that do not apply are None."""
    metric = CATALOGUE[SERIES[number][0]]
    found: dict[int, list[tuple[Value, float]]] = defaultdict(list)
    for hour in range(0, 3 * HOUR, HOUR):
        before: Measurement | None = None
        for one in measurements:
            if number not in one.values or not hour - MAX_GAP_SECONDS <= one.at < hour + HOUR:
                continue
            value = one.values[number]
            grown: float = 0
            if before is not None and metric.kind is MetricKind.COUNTER:
                assert not isinstance(value, str)
                first = before.values[number]
                assert not isinstance(first, str)
                is_reset = metric.name == "gpu_sram_errors_total" and 0 != before.session != one.session != 0
                grown = value if value < first or is_reset else value - first
            before = one
            if one.at >= hour:
                found[one.at // window * window].append((value, grown))
    if metric.kind is MetricKind.GAUGE:
        gauges = {at: [float(value) for value, _ in values] for at, values in found.items()}
        return {
            at: (min(all_), max(all_), pytest.approx(sum(all_) / len(all_)), len(all_), None, None)
            for at, all_ in gauges.items()
        }
    if metric.kind is MetricKind.STATE:
        lasts = {at: metric.states.index(str(values[-1][0])) for at, values in found.items()}
        return {at: (None, None, None, len(found[at]), last, None) for at, last in lasts.items()}
    return {
        at: (None, None, None, len(all_), all_[-1][0], pytest.approx(sum(grown for _, grown in all_)))
        for at, all_ in found.items()
    }


def expected_states(measurements: Sequence[Measurement], number: int, window: int) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], float] = defaultdict(float)
    ends = [*(one.at for one in measurements[1:]), 10**9]
    for one, end in zip(measurements, ends, strict=True):
        if number in one.values:
            for second in range(one.at, min(end, one.at + VALID_SECONDS)):
                found[second // window * window, str(one.values[number])] += 1
    return dict(found)


def check(store: ClickHouseStore, cluster: str, machine: str, measurements: Sequence[Measurement]) -> None:
    current = "(toStartOfHour(at), version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)"
    parameters = {"cluster": cluster, "machine": machine}
    for table, window in (("1m", 60), ("1h", HOUR)):
        rows = store._handles.reader.query(
            f"SELECT metric, labels, toInt64(toUnixTimestamp(at)) - {T0}, min, max, avg, count, int_last, float_last, "
            f"int_increase, float_increase FROM dim_windows_{table} FINAL WHERE {SUBJECTS_OF_MACHINE} AND {current}",
            parameters=parameters,
        ).result_rows
        found: dict[int, dict[int, tuple[object, ...]]] = defaultdict(dict)
        for metric, labels, at, low, high, mean, count, int_last, float_last, int_more, float_more in rows:
            number = SERIES.index((metric, tuple(labels)))
            last = int_last if float_last is None else float_last
            found[number][at] = (low, high, mean, count, last, int_more if float_more is None else float_more)
        for number in range(len(SERIES)):
            assert found[number] == expected(measurements, number, window)
        rows = store._handles.reader.query(
            f"SELECT toInt64(toUnixTimestamp(at)) - {T0}, state, seconds FROM state_windows_{table} FINAL "
            f"WHERE {SUBJECTS_OF_MACHINE} AND {current} AND metric = 'host_service_state'",
            parameters=parameters,
        ).result_rows
        states = {(at, state): seconds for at, state, seconds in rows}
        assert states == pytest.approx(expected_states(measurements, 5, window))


counts = st.sampled_from([0, 5, 9, 2**60 + 1])
values = st.fixed_dictionaries(
    {},
    optional={
        0: counts,
        1: counts,
        2: counts,
        3: st.sampled_from([0.0, 1.5, 100.25]),
        4: st.sampled_from([0, 7, 2**40]),
        5: st.sampled_from(["running", "failed"]),
    },
)
samples = st.lists(
    st.builds(
        Measurement,
        at=st.integers(0, 2 * HOUR - 1),
        values=values,
        session=st.sampled_from([0, 7, 7, 8]),
        absent=st.booleans(),
    ).filter(lambda one: one.values or one.absent),
    unique_by=lambda one: one.at,
    min_size=1,
    max_size=25,
).map(lambda measurements: sorted(measurements, key=lambda one: one.at))


@pytest.mark.timeout(600)
@settings(max_examples=examples(1, 5), deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(fleet=st.lists(samples, min_size=12, max_size=12))
def test_any_arrival_order_matches_the_brute_force(store: ClickHouseStore, fleet: list[list[Measurement]]) -> None:
    cluster, late = f"dims-{next(_numbers)}", random.Random(0)
    for part in ("first", "late"):
        for number, measurements in enumerate(fleet):
            some = [one for one in measurements if late.random() < 0.5] if part == "first" else measurements
            if some:
                batch = accept(cluster, f"m{number}", [sample(one) for one in some])
                store.write([batch], f"{cluster}-{part}-{number}")
    roll(store)
    for number, measurements in enumerate(fleet):
        check(store, cluster, f"m{number}", measurements)


def test_clock_step_is_no_counter_reset(store: ClickHouseStore, cluster: str) -> None:
    """Ten minutes, then the last five again. By time of measuring, the counter falls at every second measurement."""
    instants = [*range(0, 600, 30), *range(315, 900, 30)]
    batches = [
        accept(cluster, "m", [sample(Measurement(at=at, values={0: 10**9 + 7 * seq, 3: 1e9 + 7.0 * seq}))], seq=seq)
        for seq, at in enumerate(instants, start=1)
    ]
    store.write(batches, cluster)
    roll(store)
    query = f"SELECT metric, int_increase, float_increase FROM dim_windows_1h FINAL WHERE {SUBJECTS_OF_CLUSTER}"
    found = store._handles.reader.query(query, parameters={"cluster": cluster}).result_rows
    grown = {metric: whole if float_ is None else float_ for metric, whole, float_ in found}
    counted = 7 * (len(instants) - 2)  # the growth across the clock step is unknown
    assert grown == {SERIES[0][0]: counted, SERIES[3][0]: pytest.approx(counted)}


def test_hours_are_kept_without_minutes(store: ClickHouseStore, cluster: str) -> None:
    measurements = [Measurement(at=1800 + at, values={0: at, 4: at}) for at in (0, 60, 120)]
    store.write([accept(cluster, "m", [sample(one) for one in measurements])], cluster)
    kept = store._retention
    store._retention = msgspec.structs.replace(kept, rollup_1m_days=0)
    try:
        store.roll_up(time.time_ns() + 3600 * NANOS)
        roll(store)
    finally:
        store._retention = kept
    for table, rows in (("windows_1m", 0), ("dim_windows_1m", 0), ("windows_1h", 1), ("dim_windows_1h", 2)):
        query = f"SELECT count() FROM {table} FINAL WHERE {SUBJECTS_OF_CLUSTER}"
        assert store._handles.reader.query(query, parameters={"cluster": cluster}).result_rows == [(rows,)]
