"""Snapshot as CSV, JSON and table."""

import csv
import io
import json
import re
from pathlib import Path

import msgspec
import pytest

from gpufleet.exporters.csv import COLUMNS, CsvExporter
from gpufleet.exporters.display import bytes_text, event_name, hertz_text, percent_text, seconds_text, value_text
from gpufleet.exporters.json import JsonExporter
from gpufleet.exporters.table import TableExporter
from gpufleet.model.absence import Reason
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import ProcessReport
from tests.support.golden import check_golden
from tests.support.hostile import CONTROLS, with_hostile_texts
from tests.support.snapshots import example_guest, example_snapshot, held_snapshot

GOLDEN = Path(__file__).parent / "golden"


def test_csv_has_a_row_for_every_reading() -> None:
    snapshot = example_snapshot()
    page = CsvExporter().render(snapshot)
    check_golden(GOLDEN / "snapshot.csv", page)
    rows = list(csv.DictReader(io.StringIO(page.decode(), newline="")))
    assert tuple(rows[0]) == COLUMNS
    expected = sum(len(device.readings) + len(device.dimensions) for device in snapshot.devices)
    assert len(rows) == expected + len(snapshot.host.readings) + len(snapshot.host.dimensions)
    assert {row["node"] for row in rows} == {'no"de\\17\n'}
    assert all((row["value"] == "") == (row["absent"] != "") for row in rows)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_spreadsheet_formulas_are_escaped(start: str) -> None:
    snapshot = example_snapshot()
    name = f"{start}HYPERLINK(0)"
    reading = Reading(value=-1.5, reader="nvml", measured_at=snapshot.measured_at)
    device = msgspec.structs.replace(snapshot.devices[0], name=name, readings={"gpu_power_watts": reading})
    page = CsvExporter().render(msgspec.structs.replace(snapshot, devices=(device,)))
    row = next(csv.DictReader(io.StringIO(page.decode(), newline="")))
    assert row["name"] == f"'{name}"
    assert row["value"] == "-1.5"  # numbers are not escaped


def test_json_is_one_line_and_matches_its_golden_file() -> None:
    page = JsonExporter().render(example_snapshot())
    assert page.count(b"\n") == 1
    check_golden(GOLDEN / "snapshot.json", json.dumps(json.loads(page), indent=1).encode() + b"\n")


def test_table_matches_its_golden_file() -> None:
    page = TableExporter(width=140).render(example_snapshot())
    check_golden(GOLDEN / "table.txt", page)
    assert b"\x1b" not in page


@pytest.mark.parametrize("width", [1, 10, 40, 60, 80, 100])
def test_narrow_table_does_not_truncate_values(width: int) -> None:
    page = TableExporter(width=width).render(example_snapshot()).decode()
    tokens = page.replace("/", " ").split()
    assert {"GPU-00000000", "0000:10:00.0", "GiB", "128", "312", "hung,"} <= set(tokens)


def test_markup_in_a_name_is_not_interpreted() -> None:
    snapshot = example_snapshot()
    odd = msgspec.structs.replace(snapshot.devices[0], name="H200 [/x] :smile: [red]")
    page = TableExporter(width=200).render(msgspec.structs.replace(snapshot, devices=(odd, *snapshot.devices[1:])))
    assert b"H200 [/x] :smile: [red]" in page


def test_table_has_no_characters_that_control_a_terminal() -> None:
    snapshot = msgspec.structs.replace(held_snapshot(), guests=(example_guest(),))
    page = TableExporter(width=200).render(with_hostile_texts(snapshot)).decode()
    assert "a?[2J" in page
    assert not CONTROLS & set(page)


def test_table_is_coloured_on_request() -> None:
    assert b"\x1b[" in TableExporter(width=140, colour=True).render(example_snapshot())


def test_values_are_formatted_for_people() -> None:
    assert [bytes_text(value) for value in (0, 999, 1024, 2**30, 143_771 * 2**20)] == [
        "0 B", "999 B", "1 KiB", "1 GiB", "140 GiB",
    ]  # fmt: skip
    shown = [percent_text(value) for value in (0, 1e-12, 0.0004, 0.001, 0.5, 1)]
    assert shown == ["0 %", "1e-10 %", "0.04 %", "0.1 %", "50 %", "100 %"]
    assert [seconds_text(value) for value in (0.0021, 3.14159, 300, 7300, 10 * 86400)] == [
        "2.1 ms", "3.14 s", "5 min", "2 h", "10 days",
    ]  # fmt: skip
    assert hertz_text(1_980_000_000) == "1.98 GHz"
    assert value_text("gpu_performance_state", 0) == "0"
    assert value_text("gpu_state", "ok") == "ok"
    assert value_text("host_load_1m", 0.123456789) == "0.123457"


def test_healthy_gpu_with_a_recovery_action_is_not_plain_ok() -> None:
    snapshot = example_snapshot()
    device = snapshot.devices[0]
    readings = {
        **device.readings,
        "gpu_state": Reading(value="ok"),
        "gpu_recovery_action": Reading(value="gpu_reset"),
        "gpu_row_remap_pending": Reading(value=1),
        "gpu_row_remap_failed": Reading(value=0),
    }
    device = msgspec.structs.replace(device, readings=readings)

    screen = TableExporter(width=200).render(msgspec.structs.replace(snapshot, devices=(device,))).decode()

    assert "ok, needs gpu_reset, remap pending" in screen
    assert "remap failed" not in screen


def test_absence_is_not_the_state_of_a_gpu_with_values() -> None:
    snapshot = example_snapshot()
    device = msgspec.structs.replace(
        snapshot.devices[0],
        readings={
            "gpu_power_watts": Reading(value=300.0),
            "gpu_last_xid": Reading(absent=Reason.NO_DATA, detail="none was seen"),
        },
    )
    hung = msgspec.structs.replace(device, readings={"gpu_power_watts": Reading(absent=Reason.TIMEOUT, detail="hangs")})
    render = TableExporter(width=200).render
    assert "none was seen" not in render(msgspec.structs.replace(snapshot, devices=(device,))).decode()
    assert "timeout: hangs" in render(msgspec.structs.replace(snapshot, devices=(hung,))).decode()


def test_table_lists_processes_by_memory() -> None:
    snapshot = example_snapshot()
    first, second = snapshot.devices[0], snapshot.devices[1]

    def process(pid: int, memory: int | None, name: str = "") -> ProcessReport:
        used = Reading(absent=Reason.NOT_REPORTED) if memory is None else Reading(value=memory)
        return ProcessReport(pid=pid, kinds=("compute",), name=name, readings={"memory_bytes": used})

    many = (process(4, None), *(process(100 + number, (9 + number) << 30, "train") for number in range(9)))
    devices = (msgspec.structs.replace(first, processes=many), msgspec.structs.replace(second, processes=()))
    screen = TableExporter(width=200).render(msgspec.structs.replace(snapshot, devices=devices)).decode()

    shown = re.findall(r"^ *(\d+) +(\d+) +train +compute +(\d+ GiB) ", screen, re.MULTILINE)
    assert shown == [(str(first.index), str(100 + number), f"{9 + number} GiB") for number in range(8, 0, -1)]
    assert "and 2 more" in screen


@pytest.mark.parametrize(
    ("kind", "code", "name"),
    [
        ("xid", 79, "xid 79"),
        ("gpu_lost", 0, "gpu_lost"),
        ("gpu_recovered", 0, "gpu_recovered"),
        ("gpu_recovered", 40, "gpu_recovered (reset)"),
        ("gpu_reset", 40, "gpu_reset"),
        ("driver_reloaded", 40, "driver_reloaded"),
    ],
)
def test_code_of_a_reset_is_shown_as_its_meaning(kind: str, code: int, name: str) -> None:
    assert event_name(kind, code) == name
