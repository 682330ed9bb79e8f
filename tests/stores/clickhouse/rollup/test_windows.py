"""Windows, states and usage of an hour's samples, without a store: many cases and any order of rows."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.model.catalogue import CATALOGUE, MetricKind, Storage, ValueType
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.durations import compute_states, compute_usage
from gpufleet.stores.clickhouse.rollup.output import windows_table
from gpufleet.stores.clickhouse.rollup.rows import SampleColumns, SubjectLanes, read_rows
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, MINUTE_NS, WINDOWS_1M, valid_ns
from gpufleet.stores.clickhouse.rollup.windows import WindowSet, compute_windows, to_hour
from tests.stores.clickhouse.rollup import brute
from tests.stores.clickhouse.rollup.brute import HOUR, MAX_GAP_SECONDS, Measurement
from tests.stores.clickhouse.rollup.test_against_brute_force import NAMES, T0, readings
from tests.support.profiles import examples

FIRST = (T0 + HOUR) * NANOS
LAST = FIRST + HOUR_NS
Fleet = Sequence[tuple[Measurement, str, str]]  # measurement, machine, provenance
NUMBERS = {"a": 7, "b": 8, "c": 2**32 - 1}
MACHINES = {number: machine for machine, number in NUMBERS.items()}
LANES = SubjectLanes(
    numbers=np.array(sorted(MACHINES)), valid_ns=np.full(3, valid_ns("fast")), of_device=np.ones(3, np.bool_)
)


def table_of(measurements: Fleet, epochs: Sequence[str] = ()) -> pa.Table:
    """Return the samples as the store does: around the second hour, in no order."""
    columns: dict[str, pa.Array] = {}
    ints: list[list[tuple[int, int]]] = [[] for _ in measurements]
    for field, name in NAMES.items():
        metric = CATALOGUE[name]
        cells = [getattr(one, field) for one, _, _ in measurements]
        if metric.type is ValueType.ENUM:
            cells = [None if cell is None else metric.states.index(cell) for cell in cells]
        if metric.storage is Storage.TAIL:
            for row, cell in enumerate(cells):
                ints[row] += [] if cell is None else [(metric.id, cell)]
        else:
            types = {ValueType.INT: pa.uint64(), ValueType.FLOAT: pa.float64(), ValueType.ENUM: pa.int8()}
            columns[name] = pa.array(cells, types[metric.type])
    texts = {
        "provenance": [provenance for _, _, provenance in measurements],
        "epoch": epochs or ["e"] * len(measurements),
    }
    return pa.table(
        {
            **{name: pa.array(cells, pa.string()).dictionary_encode() for name, cells in texts.items()},
            "subject": pa.array([NUMBERS[machine] for _, machine, _ in measurements], pa.uint32()),
            "seq": pa.array([one.seq for one, _, _ in measurements], pa.uint64()),
            "driver_session": pa.array([one.session for one, _, _ in measurements], pa.uint64()),
            "measured_at": pa.array([(T0 + one.at) * NANOS for one, _, _ in measurements], pa.timestamp("ns", "UTC")),
            **columns,
            "tail_int_ids": pa.array([[number for number, _ in row] for row in ints], pa.list_(pa.uint16())),
            "tail_int_values": pa.array([[value for _, value in row] for row in ints], pa.list_(pa.uint64())),
            "tail_float_ids": pa.array([[] for _ in measurements], pa.list_(pa.uint16())),
            "tail_float_values": pa.array([[] for _ in measurements], pa.list_(pa.float64())),
        }
    )


def rows_of(fleet: dict[str, Sequence[Measurement]]) -> SampleColumns:
    measurements = [
        (one, machine, "host_local_probe")
        for machine, mine in fleet.items()
        for one in mine
        if HOUR - MAX_GAP_SECONDS <= one.at < 2 * HOUR + MAX_GAP_SECONDS
    ]
    random.Random(0).shuffle(measurements)
    return read_rows(table_of(measurements), LANES)


def values_of(rows: SampleColumns, windows: WindowSet, machine: str, field: str) -> dict[int, tuple[float, ...]]:
    """Return the parts of a metric by window start; times are in seconds after the first hour."""
    metric = CATALOGUE[NAMES[field]]
    kind: Mapping[int, Any] = getattr(windows, f"{metric.kind.value}s")
    one = kind.get(metric.id)
    found = {}
    if one is not None:
        parts = [getattr(one, part) for part in one.__struct_fields__ if part not in ("at", "last_at")]
        if metric.kind is MetricKind.STATE:
            parts.append(one.last_at // NANOS - T0)
        for place, window in enumerate(one.at):
            if rows.subject[windows.first_row[window]] == NUMBERS[machine]:
                found[int(windows.start[window]) // NANOS - T0] = tuple(part[place].item() for part in parts)
    return found


def expected(measurements: Sequence[Measurement], field: str, window: int) -> dict[int, tuple[float, ...]]:
    metric = CATALOGUE[NAMES[field]]
    within = [one for one in measurements if HOUR <= one.at < 2 * HOUR]
    if metric.kind is MetricKind.GAUGE:
        return {**brute.gauges(within, field, window)}
    if metric.kind is MetricKind.COUNTER:
        return {**brute.counters(measurements, field, window, HOUR)}
    last = {one.at // window * window: one for one in within if getattr(one, field) is not None}
    return {at: (metric.states.index(getattr(one, field)), one.at) for at, one in last.items()}


@st.composite
def around_the_hour(draw: st.DrawFn) -> list[Measurement]:
    measurements = draw(readings)
    instants = draw(
        st.lists(st.integers(0, 3 * HOUR - 1), min_size=len(measurements), max_size=len(measurements), unique=True)
    )
    numbers = draw(st.lists(st.integers(0, 40), min_size=len(measurements), max_size=len(measurements)))
    if draw(st.booleans()):  # no clock was set
        numbers.sort()
    return [
        msgspec.structs.replace(one, at=at, seq=seq)
        for one, at, seq in zip(measurements, sorted(instants), numbers, strict=True)
    ]


fleets = st.dictionaries(st.sampled_from(["a", "b", "c"]), around_the_hour(), min_size=1)


@settings(max_examples=examples(100, 1000))
@given(fleet=fleets)
def test_minutes_and_hours_match_the_brute_force(fleet: dict[str, Sequence[Measurement]]) -> None:
    rows = rows_of(fleet)
    minutes = compute_windows(rows, FIRST, LAST, MINUTE_NS)
    computed = {60: [minutes], HOUR: [to_hour(minutes, rows, FIRST), compute_windows(rows, FIRST, LAST, HOUR_NS)]}
    for machine, measurements in fleet.items():
        for window, variants in computed.items():
            for windows in variants:
                for field in NAMES:
                    found = values_of(rows, windows, machine, field)
                    assert found == {
                        at: pytest.approx(parts) for at, parts in expected(measurements, field, window).items()
                    }


@settings(max_examples=examples(80, 800))
@given(fleet=fleets)
def test_states_and_usage_match_the_brute_force(fleet: dict[str, Sequence[Measurement]]) -> None:
    rows = rows_of(fleet)
    numbers = {CATALOGUE[NAMES[field]].id: field for field in ("state", "mig")}
    for states, window in zip(compute_states(rows, FIRST, LAST), (60, HOUR), strict=True):
        found: dict[tuple[str, str, int, str], float] = {}
        for row, metric, state, start, seconds in zip(
            states.row, states.metric, states.state, states.start, states.seconds, strict=True
        ):
            field = numbers[int(metric)]
            name = CATALOGUE[NAMES[field]].states[state]
            key = (MACHINES[rows.subject[row]], field, int(start) // NANOS - T0, name)
            assert key not in found
            found[key] = float(seconds)
        assert found == {
            (machine, field, at, state): pytest.approx(seconds)
            for machine, measurements in fleet.items()
            for field in numbers.values()
            for (at, state), seconds in brute.states(measurements, field, window).items()
            if HOUR <= at < 2 * HOUR
        }
    used = compute_usage(rows, FIRST, LAST)
    sums = {MACHINES[rows.subject[row]]: [of[place] for of in used.sums.values()] for place, row in enumerate(used.row)}
    for machine, measurements in fleet.items():
        known = list(brute.usage(measurements, HOUR, 2 * HOUR).values())
        assert sums.get(machine, [0.0] * 6) == pytest.approx(known, abs=1e-6)


def test_alternating_provenances_have_separate_windows() -> None:
    measurements = [
        (Measurement(at=HOUR + 10 * step, watts=float(step), joules=step * 7.0), "a", "xy"[step % 2])
        for step in range(12)
    ]
    rows = read_rows(table_of(measurements), LANES)
    windows = compute_windows(rows, FIRST, LAST, MINUTE_NS)
    codes, names = rows.provenance
    assert [names[codes[row]] for row in windows.first_row] == ["x", "x", "y", "y"]
    assert windows.samples.tolist() == [3, 3, 3, 3]
    watts = windows.gauges[CATALOGUE["gpu_power_watts"].id]
    assert (watts.low.tolist(), watts.high.tolist()) == ([0, 6, 1, 7], [4, 10, 5, 11])
    joules = windows.counters[CATALOGUE["gpu_energy_joules_total"].id]
    assert joules.increase.tolist() == [14, 21, 21, 21]
    hours = to_hour(windows, rows, FIRST)
    assert hours.counters[CATALOGUE["gpu_energy_joules_total"].id].increase.tolist() == [35, 42]


def increases_of(measurements: Fleet, epochs: Sequence[str] = ()) -> list[int]:
    """Return the increase of a counter in each minute of the hour."""
    windows = compute_windows(read_rows(table_of(measurements, epochs), LANES), FIRST, LAST, MINUTE_NS)
    increases: list[int] = windows.counters[CATALOGUE["gpu_pcie_transmit_bytes_total"].id].increase.tolist()
    return increases


def counting(*spans: tuple[range, int], provenance: str = "host_local_probe") -> Fleet:
    """Return a counter that grows by 7 with each batch. A span has instants and the seconds that its clock is ahead."""
    instants = [at + ahead for span, ahead in spans for at in span]
    return [
        (Measurement(at=HOUR + at, sent=10**6 + 7 * number, seq=number), "a", provenance)
        for number, at in enumerate(instants)
    ]


def test_clock_set_back_is_no_counter_reset() -> None:
    """Ten minutes, then the last five again. By time of measuring, the counter falls 30 times."""
    measurements = counting((range(0, 600, 10), 0), (range(600, 1200, 10), -295))
    assert sum(increases_of(measurements)) == 7 * (len(measurements) - 2)  # the growth across the clock step is unknown


def test_counter_that_falls_in_sequence_order_was_reset() -> None:
    measurements = [
        (Measurement(at=HOUR + at, sent=value, seq=seq), "a", "x")
        for seq, at, value in [(1, 0, 90), (2, 9, 95), (3, 18, 4)]
    ]
    assert increases_of(measurements) == [9]
    back = [
        (Measurement(at=HOUR + at, sent=value, seq=seq), "a", "x")
        for seq, at, value in [(4, 3, 6), (5, 12, 2), (6, 21, 9)]
    ]
    assert increases_of([*measurements, *back]) == [5 + 4 + 2 + 7]


def test_alternating_epochs_are_one_counter() -> None:
    """Batches that the disk refused are numbered in a second epoch, in memory."""
    measurements = counting((range(0, 60, 10), 0))
    assert increases_of(measurements, ["disk", "disk", "memory", "disk", "memory", "memory"]) == [35]


def test_renumbered_batches_are_ordered_by_time() -> None:
    """A relay forwards the batches of a cloned sender under its own epoch, the newest first."""
    measurements = [
        (Measurement(at=HOUR + at, sent=at, seq=seq), "a", "x") for seq, at in enumerate([40, 30, 20, 10, 0], start=1)
    ]
    assert increases_of(measurements) == [40]


def test_imported_samples_are_ordered_by_time() -> None:
    measurements = [
        (Measurement(at=HOUR + at, sent=at, seq=seq), "a", "imported")
        for seq, at in enumerate([20, 10, 40, 0, 30], start=1)
    ]
    assert increases_of(measurements) == [40]


def test_integers_above_2_to_the_53_stay_exact() -> None:
    measurements = [(Measurement(at=HOUR + at, errors=2**63 + at, bar1=2**60 + at), "a", "x") for at in (0, 1, 2)]
    windows = compute_windows(read_rows(table_of(measurements), LANES), FIRST, LAST, HOUR_NS)
    errors = windows.counters[CATALOGUE["gpu_ecc_corrected_errors_total"].id]
    assert (errors.last.tolist(), errors.increase.tolist()) == ([2**63 + 2], [2])
    assert windows.gauges[CATALOGUE["gpu_bar1_used_bytes"].id].high.tolist() == [2**60 + 2]


def test_numbers_above_32_bit_floats_stay_finite() -> None:
    rows = read_rows(table_of([(Measurement(at=HOUR, watts=1e300), "a", "x")]), LANES)
    minutes = windows_table(WINDOWS_1M, 1, rows, compute_windows(rows, FIRST, LAST, MINUTE_NS))
    assert minutes.column("gpu_power_watts_max").to_pylist() == [pytest.approx(3.4e38, rel=0.01)]


def test_duplicate_sample_is_detected() -> None:
    once, twice = ([(Measurement(at=HOUR, watts=1.0), "a", "x")] * count for count in (1, 2))
    assert not read_rows(table_of(once), LANES).has_duplicates
    assert read_rows(table_of(twice), LANES).has_duplicates


def test_samples_of_an_unknown_subject_are_left_out() -> None:
    measurements = [(Measurement(at=HOUR, watts=1.0), machine, "x") for machine in ("a", "b", "c")]
    lanes = SubjectLanes(numbers=LANES.numbers[:2], valid_ns=LANES.valid_ns[:2], of_device=LANES.of_device[:2])
    assert read_rows(table_of(measurements), lanes).subject.tolist() == [NUMBERS["a"], NUMBERS["b"]]


def test_no_samples_give_no_rows() -> None:
    rows = read_rows(table_of([]), LANES)
    windows = compute_windows(rows, FIRST, LAST, MINUTE_NS)
    assert len(windows.start) == len(to_hour(windows, rows, FIRST).start) == 0
    assert all(len(states.row) == 0 for states in compute_states(rows, FIRST, LAST))
    assert np.size(compute_usage(rows, FIRST, LAST).row) == 0
