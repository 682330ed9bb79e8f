"""Normalisation of process tables: an invalid value affects only itself."""

import math
from collections import Counter

import msgspec
import pytest

from gpufleet.codecs.batch import to_rows, to_wire
from gpufleet.hub.flush.normalise import normalise
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.model.wire.batch import Cell, ProcessList, WireBatch
from tests.codecs.batch.batches import NOW
from tests.codecs.batch.test_processes import batch_of, process


def table(**changes: object) -> WireBatch:
    wire = to_wire(batch_of(process(1, 10), process(2, 20)))
    (processes,) = wire.parts[0].processes
    wire.parts[0].processes = [msgspec.structs.replace(processes, **changes)]
    return wire


def clean(wire: WireBatch) -> ProcessList:
    (processes,) = normalise(wire, NOW).batch.parts[0].processes
    return processes


@pytest.mark.parametrize(
    ("name", "cell", "detail"),
    [
        ("memory_bytes", -1, "below 0"),
        ("memory_bytes", 1.5, "not an integer of 64 bits"),
        ("memory_bytes", 2.0**64, "not an integer of 64 bits"),
        ("memory_bytes", "much", "not a number"),
        ("memory_bytes", math.nan, "not a finite number"),
        ("sm_utilization_ratio", 1.01, "above 1"),
        ("sm_utilization_ratio", math.inf, "not a finite number"),
        ("decoder_utilization_ratio", -0.1, "below 0"),
    ],
)
def test_invalid_process_value_is_absent_and_counted(name: str, cell: Cell, detail: str) -> None:
    wire = table()
    place = list(PROCESS_READINGS).index(name)
    wire.parts[0].processes[0].columns[place][0] = cell
    found = normalise(wire, NOW)
    assert found.invalid_values == Counter({name: 1})
    (sample,) = to_rows(found.batch).reports[0].samples
    assert sample.processes is not None
    by_pid = {one.pid: one.values for one in sample.processes}
    assert by_pid[2][name] == Absent(Reason.INVALID_VALUE, detail)  # rows are sorted by memory, largest first
    assert not any(isinstance(value, Absent) for value in by_pid[1].values())


def test_integral_float_is_an_integer_and_null_not_reported() -> None:
    wire = table()
    wire.parts[0].processes[0].columns[0] = [20.0, None]
    (sample,) = to_rows(normalise(wire, NOW).batch).reports[0].samples
    assert sample.processes is not None
    assert [one.values["memory_bytes"] for one in sample.processes] == [Absent(Reason.NOT_REPORTED), 20]


def test_unknown_readings_are_dropped_and_missing_absent() -> None:
    found = normalise(table(readings=["memory_bytes", "newer"], columns=[[20, 10], [1, 2]]), NOW)
    assert found.unknown_metrics == Counter({"newer": 2})
    (processes,) = found.batch.parts[0].processes
    assert processes.readings == list(PROCESS_READINGS)
    assert processes.columns == [[20, 10], *[[None, None]] * 4]


def test_repeated_process_and_repeated_table_count_once() -> None:
    processes = clean(table(pids=[7, 7]))
    assert (processes.pids, processes.columns[0], processes.total) == ([7], [20], 2)
    wire = table()
    wire.parts[0].processes *= 2
    found = normalise(wire, NOW)
    assert (len(found.batch.parts[0].processes), found.repeated_rows) == (1, 2)


def test_table_measured_in_the_future_is_dropped_and_counted() -> None:
    found = normalise(table(measured_at=NOW + 601 * 10**9), NOW)
    assert (found.batch.parts[0].processes, found.future_rows) == ([], 2)


def test_total_is_at_least_the_number_of_listed() -> None:
    assert clean(table(total=0)).total == 2


def test_process_kinds_with_other_characters_are_dropped() -> None:
    assert clean(table(kinds=[["compute", "a,b"], ["x y"]])).kinds == [["compute"], []]
