"""What is made of an hour's samples, without a store: many more cases, and any order of rows."""

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
from gpufleet.stores.clickhouse.rollup.rows import SampleColumns, read_rows
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, MINUTE_NS
from gpufleet.stores.clickhouse.rollup.windows import WindowSet, compute_windows, to_hour
from tests.stores.clickhouse.rollup import brute
from tests.stores.clickhouse.rollup.brute import APART, HOUR, Told
from tests.stores.clickhouse.rollup.test_against_brute_force import NAMES, T0, readings
from tests.support.profiles import examples

FIRST = (T0 + HOUR) * NANOS
LAST = FIRST + HOUR_NS
Fleet = Sequence[tuple[Told, str, str]]  # what was told, by which machine, and with which provenance


def table_of(told: Fleet, epochs: Sequence[str] = ()) -> pa.Table:
    """The samples as the store answers them: around the second hour, in no order."""
    columns: dict[str, pa.Array] = {}
    ints: list[list[tuple[int, int]]] = [[] for _ in told]
    for field, name in NAMES.items():
        metric = CATALOGUE[name]
        cells = [getattr(one, field) for one, _, _ in told]
        if metric.type is ValueType.ENUM:
            cells = [None if cell is None else metric.states.index(cell) for cell in cells]
        if metric.storage is Storage.TAIL:
            for row, cell in enumerate(cells):
                ints[row] += [] if cell is None else [(metric.id, cell)]
        else:
            types = {ValueType.INT: pa.uint64(), ValueType.FLOAT: pa.float64(), ValueType.ENUM: pa.int8()}
            columns[name] = pa.array(cells, types[metric.type])
    texts = {
        "machine": [machine for _, machine, _ in told],
        "view_text": ["gpu/GPU-1"] * len(told),
        "reader": ["nvml"] * len(told),
        "lane": ["fast"] * len(told),
        "provenance": [provenance for _, _, provenance in told],
        "epoch": epochs or ["e"] * len(told),
    }
    return pa.table(
        {
            **{name: pa.array(cells, pa.string()).dictionary_encode() for name, cells in texts.items()},
            "seq": pa.array([one.seq for one, _, _ in told], pa.uint64()),
            "driver_session": pa.array([one.session for one, _, _ in told], pa.uint64()),
            "measured_at": pa.array([(T0 + one.at) * NANOS for one, _, _ in told], pa.timestamp("ns", "UTC")),
            **columns,
            "tail_int_ids": pa.array([[number for number, _ in row] for row in ints], pa.list_(pa.uint16())),
            "tail_int_values": pa.array([[value for _, value in row] for row in ints], pa.list_(pa.uint64())),
            "tail_float_ids": pa.array([[] for _ in told], pa.list_(pa.uint16())),
            "tail_float_values": pa.array([[] for _ in told], pa.list_(pa.float64())),
        }
    )


def rows_of(fleet: dict[str, Sequence[Told]]) -> SampleColumns:
    told = [
        (one, machine, "host_local_probe")
        for machine, mine in fleet.items()
        for one in mine
        if HOUR - APART <= one.at < 2 * HOUR + APART
    ]
    random.Random(0).shuffle(told)
    return read_rows(table_of(told))


def values_of(rows: SampleColumns, windows: WindowSet, machine: str, field: str) -> dict[int, tuple[float, ...]]:
    """Window's start, in seconds after the first hour, to what is known of a metric."""
    metric = CATALOGUE[NAMES[field]]
    kind: Mapping[int, Any] = getattr(windows, f"{metric.kind.value}s")
    one = kind.get(metric.id)
    codes, names = rows.texts["machine"]
    found = {}
    if one is not None:
        parts = [getattr(one, part) for part in one.__struct_fields__ if part != "at"]
        for place, window in enumerate(one.at):
            if names[codes[windows.first_row[window]]] == machine:
                found[int(windows.start[window]) // NANOS - T0] = tuple(part[place].item() for part in parts)
    return found


def expected(told: Sequence[Told], field: str, window: int) -> dict[int, tuple[float, ...]]:
    metric = CATALOGUE[NAMES[field]]
    within = [one for one in told if HOUR <= one.at < 2 * HOUR]
    if metric.kind is MetricKind.GAUGE:
        return {**brute.gauges(within, field, window)}
    if metric.kind is MetricKind.COUNTER:
        return {**brute.counters(told, field, window, HOUR)}
    said = {one.at // window * window: getattr(one, field) for one in within if getattr(one, field) is not None}
    return {at: (metric.states.index(state),) for at, state in said.items()}


@st.composite
def around_the_hour(draw: st.DrawFn) -> list[Told]:
    told = draw(readings)
    instants = draw(st.lists(st.integers(0, 3 * HOUR - 1), min_size=len(told), max_size=len(told), unique=True))
    numbers = draw(st.lists(st.integers(0, 40), min_size=len(told), max_size=len(told)))
    if draw(st.booleans()):  # nobody's clock was set
        numbers.sort()
    return [
        msgspec.structs.replace(one, at=at, seq=seq)
        for one, at, seq in zip(told, sorted(instants), numbers, strict=True)
    ]


fleets = st.dictionaries(st.sampled_from(["a", "b", "c"]), around_the_hour(), min_size=1)


@settings(max_examples=examples(100, 1000))
@given(fleet=fleets)
def test_minutes_and_hours_of_any_samples(fleet: dict[str, Sequence[Told]]) -> None:
    rows = rows_of(fleet)
    minutes = compute_windows(rows, FIRST, LAST, MINUTE_NS)
    made = {60: [minutes], HOUR: [to_hour(minutes, rows, FIRST), compute_windows(rows, FIRST, LAST, HOUR_NS)]}
    for machine, told in fleet.items():
        for window, all_ways in made.items():
            for windows in all_ways:
                for field in NAMES:
                    found = values_of(rows, windows, machine, field)
                    assert found == {at: pytest.approx(parts) for at, parts in expected(told, field, window).items()}


@settings(max_examples=examples(80, 800))
@given(fleet=fleets)
def test_states_and_use_of_any_samples(fleet: dict[str, Sequence[Told]]) -> None:
    rows = rows_of(fleet)
    codes, names = rows.texts["machine"]
    numbers = {CATALOGUE[NAMES[field]].id: field for field in ("state", "mig")}
    for lasted, window in zip(compute_states(rows, FIRST, LAST), (60, HOUR), strict=True):
        found: dict[tuple[str, str, int, str], float] = {}
        for row, metric, state, start, seconds in zip(
            lasted.row, lasted.metric, lasted.state, lasted.start, lasted.seconds, strict=True
        ):
            field = numbers[int(metric)]
            name = CATALOGUE[NAMES[field]].states[state]
            key = (names[codes[row]], field, int(start) // NANOS - T0, name)
            assert key not in found
            found[key] = float(seconds)
        assert found == {
            (machine, field, at, state): pytest.approx(seconds)
            for machine, told in fleet.items()
            for field in numbers.values()
            for (at, state), seconds in brute.states(told, field, window).items()
            if HOUR <= at < 2 * HOUR
        }
    used = compute_usage(rows, FIRST, LAST)
    sums = {names[codes[row]]: [of[place] for of in used.sums.values()] for place, row in enumerate(used.row)}
    for machine, told in fleet.items():
        known = list(brute.usage(told, HOUR, 2 * HOUR).values())
        assert sums.get(machine, [0.0] * 6) == pytest.approx(known, abs=1e-6)


def test_alternating_provenances_have_windows_of_their_own() -> None:
    told = [
        (Told(at=HOUR + 10 * step, watts=float(step), joules=step * 7.0), "a", "xy"[step % 2]) for step in range(12)
    ]
    rows = read_rows(table_of(told))
    windows = compute_windows(rows, FIRST, LAST, MINUTE_NS)
    codes, names = rows.texts["provenance"]
    assert [names[codes[row]] for row in windows.first_row] == ["x", "x", "y", "y"]
    assert windows.samples.tolist() == [3, 3, 3, 3]
    watts = windows.gauges[CATALOGUE["gpu_power_watts"].id]
    assert (watts.low.tolist(), watts.high.tolist()) == ([0, 6, 1, 7], [4, 10, 5, 11])
    joules = windows.counters[CATALOGUE["gpu_energy_joules_total"].id]
    assert joules.increase.tolist() == [14, 21, 21, 21]
    hours = to_hour(windows, rows, FIRST)
    assert hours.counters[CATALOGUE["gpu_energy_joules_total"].id].increase.tolist() == [35, 42]


def sent(told: Fleet, epochs: Sequence[str] = ()) -> list[int]:
    """By how much a counter grew in each minute of the hour."""
    windows = compute_windows(read_rows(table_of(told, epochs)), FIRST, LAST, MINUTE_NS)
    increases: list[int] = windows.counters[CATALOGUE["gpu_pcie_transmit_bytes_total"].id].increase.tolist()
    return increases


def counting(*spans: tuple[range, int], provenance: str = "host_local_probe") -> Fleet:
    """A counter that grows by 7 with each batch, told by a clock: spans of instants, and by how much it is ahead."""
    instants = [at + ahead for span, ahead in spans for at in span]
    return [
        (Told(at=HOUR + at, sent=10**6 + 7 * number, seq=number), "a", provenance) for number, at in enumerate(instants)
    ]


def test_a_counter_whose_clock_was_set_back_was_not_restarted() -> None:
    """Ten minutes, and then again the last five of them: by turns they fall 30 times."""
    told = counting((range(0, 600, 10), 0), (range(600, 1200, 10), -295))
    assert sum(sent(told)) == 7 * (len(told) - 2)  # what it grew by while the clock was set is unknown


def test_counter_that_falls_in_sequence_order_was_reset() -> None:
    told = [
        (Told(at=HOUR + at, sent=value, seq=seq), "a", "x") for seq, at, value in [(1, 0, 90), (2, 9, 95), (3, 18, 4)]
    ]
    assert sent(told) == [9]
    back = [
        (Told(at=HOUR + at, sent=value, seq=seq), "a", "x") for seq, at, value in [(4, 3, 6), (5, 12, 2), (6, 21, 9)]
    ]
    assert sent([*told, *back]) == [5 + 4 + 2 + 7]


def test_a_spool_and_a_memory_that_count_by_turns_are_one_course() -> None:
    """What the disk refuses is numbered in an epoch of its own."""
    told = counting((range(0, 60, 10), 0))
    assert sent(told, ["disk", "disk", "memory", "disk", "memory", "memory"]) == [35]


def test_renumbered_batches_are_ordered_by_time() -> None:
    """It had acknowledged a clone's batches, and passes them on under an epoch of its own, the newest first."""
    told = [(Told(at=HOUR + at, sent=at, seq=seq), "a", "x") for seq, at in enumerate([40, 30, 20, 10, 0], start=1)]
    assert sent(told) == [40]


def test_what_is_imported_comes_in_any_order() -> None:
    told = [
        (Told(at=HOUR + at, sent=at, seq=seq), "a", "imported") for seq, at in enumerate([20, 10, 40, 0, 30], start=1)
    ]
    assert sent(told) == [40]


def test_whole_numbers_stay_whole_past_2_to_the_53() -> None:
    told = [(Told(at=HOUR + at, errors=2**63 + at, bar1=2**60 + at), "a", "x") for at in (0, 1, 2)]
    windows = compute_windows(read_rows(table_of(told)), FIRST, LAST, HOUR_NS)
    errors = windows.counters[CATALOGUE["gpu_ecc_corrected_errors_total"].id]
    assert (errors.last.tolist(), errors.increase.tolist()) == ([2**63 + 2], [2])
    assert windows.gauges[CATALOGUE["gpu_bar1_used_bytes"].id].high.tolist() == [2**60 + 2]


def test_a_sample_that_is_there_twice_is_told() -> None:
    once, twice = ([(Told(at=HOUR, watts=1.0), "a", "x")] * count for count in (1, 2))
    assert not read_rows(table_of(once)).has_duplicates
    assert read_rows(table_of(twice)).has_duplicates


def test_nothing_is_nothing() -> None:
    rows = read_rows(table_of([]))
    windows = compute_windows(rows, FIRST, LAST, MINUTE_NS)
    assert len(windows.start) == len(to_hour(windows, rows, FIRST).start) == 0
    assert all(len(lasted.row) == 0 for lasted in compute_states(rows, FIRST, LAST))
    assert np.size(compute_usage(rows, FIRST, LAST).row) == 0
