"""Readers and formats agree on what a board has: pairs of outputs of one board."""

import re
from collections.abc import Iterator, Mapping

import pytest

from gpufleet.codecs.nvidia_smi import DeviceRecord, parse_capture, parse_csv, parse_text
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER, PREFIX
from gpufleet.fleet.board import ECC_COUNTS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Sample, Value
from gpufleet.readers.exporter.mapping import samples_of
from gpufleet.readers.nvidia_smi.mapping.devices import ALL_METRICS, RequestedMetrics, metrics_of_columns
from gpufleet.readers.nvidia_smi.mapping.rows import LANES
from gpufleet.readers.nvidia_smi.samples import gpu_sample, modes_by_key
from gpufleet.readers.nvidia_smi.views import identify, rows_as_records
from tests.fakes.nvidia_smi.standin import DATA

Readings = dict[tuple[str, tuple[str, ...]], Value | Absent]

RACK = ("gpu_chassis_serial", "gpu_chassis_slot", "gpu_tray_index", "gpu_host_id", "gpu_fabric_guid")

OTHER_CALLS = {
    *("gpu_mig_devices", "gpu_compute_processes", "gpu_state"),  # CSV has no lists
}
"""Metrics that one of the formats does not have."""


def readings(records: list[DeviceRecord], requested: RequestedMetrics) -> Readings:
    gpus, _ = identify(records)
    modes = modes_by_key(gpus, {})
    found: Readings = {}
    for gpu in gpus:
        for lane in LANES:
            found |= readings_of(gpu_sample(gpu, lane, requested, modes[gpu.view.key], 1))
    return found


def readings_of(sample: Sample) -> Readings:
    found: Readings = {(name, ()): value for name, value in sample.values.items()}
    return found | {(dim.metric, dim.labels): dim.value for dim in sample.dims}


STATES = {"no": 0, "yes": 1, "disabled": 0, "enabled": 1, "not active": 0, "active": 1}


def exporter_page(row: Mapping[str, str]) -> str:
    """Return the series of nvidia_gpu_exporter for cells without a unit; a cell without a number has no series."""
    lines = []
    for query, cell in row.items():
        number = STATES.get(cell.lower(), cell)
        if re.fullmatch("[0-9]+", str(number)):
            name = re.sub("(?<=[a-z])(?=[A-Z])", "_", query).lower().replace(".", "_")
            lines.append(f'{PREFIX}{name}{{uuid="00000000-0000-0000-0000-000000000000"}} {number}\n')
    return "".join(lines)


def imported(row: Mapping[str, str]) -> Readings:
    page = TextParser().parse(exporter_page(row).encode())
    found: Readings = {}
    for sample in samples_of(page, NVIDIA_GPU_EXPORTER, 1, reader="x", where="x").samples:
        found |= readings_of(sample)
    return found


def reason(value: Value | Absent) -> Reason | None:
    return value.reason if isinstance(value, Absent) else None


def pairs() -> Iterator[tuple[str, Readings, Readings]]:
    for file in sorted(DATA.glob("capture-*.txt")):
        logs: dict[str, Readings] = {}
        for section in parse_capture(file.read_bytes()):
            if section.arguments == "-q":
                logs[section.group] = readings(list(parse_text(section.body).devices), ALL_METRICS)
            elif section.arguments.startswith("--query-gpu="):
                table = parse_csv(section.body)
                rows = readings(rows_as_records(table.rows), metrics_of_columns(table.columns))
                yield f"{file.stem}-{section.group}", logs[section.group], rows


PAIRS = {name: (log, rows) for name, log, rows in pairs()}


def tables() -> Iterator[tuple[str, Mapping[str, str]]]:
    for file in sorted(DATA.glob("capture-*.txt")):
        for section in parse_capture(file.read_bytes()):
            if section.arguments.startswith("--query-gpu="):
                yield f"{file.stem}-{section.group}", parse_csv(section.body).rows[0]


TABLES = dict(tables())


@pytest.mark.parametrize("name", TABLES)
def test_exporter_of_the_same_cells_agrees(name: str) -> None:
    rows, page = PAIRS[name][1], imported(TABLES[name])
    both = rows.keys() & page.keys()
    assert len(both) > 5
    assert {key: (rows[key], page[key]) for key in both if rows[key] != page[key]} == {}


@pytest.mark.parametrize("name", PAIRS)
def test_formats_agree_on_what_a_board_has(name: str) -> None:
    log, rows = PAIRS[name]
    both = {key for key in log.keys() & rows.keys() if key[0] not in OTHER_CALLS}
    # `-q` hides more of the parent of MIG devices than CSV.
    both -= {key for key in both if reason(log[key]) is Reason.NOT_IN_MIG_MODE}
    assert len(both) > 40
    assert {key: (log[key], rows[key]) for key in both if reason(log[key]) is not reason(rows[key])} == {}


@pytest.mark.parametrize("name", PAIRS)
def test_boards_outside_a_rack_have_no_place_in_any_format(name: str) -> None:
    for found in PAIRS[name]:
        for metric in RACK:
            value = found.get((metric, ()))
            assert value is None or (isinstance(value, Absent) and value.reason is Reason.NOT_SUPPORTED), metric


ECC_CELLS = {
    "ecc.errors.corrected.aggregate.sram": "0",
    "ecc.errors.uncorrected.volatile.sram.parity": "0",
    "ecc.errors.uncorrected.aggregate.sram.secded": "0",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
    "ecc.errors.uncorrected.aggregate.sram.l2": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "ecc.errors.corrected.volatile.dram": "0",
}
"""What CSV prints for boards without ECC, where `-q` prints `N/A`."""


@pytest.mark.parametrize("mode", ["[N/A]", "Disabled"])
def test_zeros_without_ecc_are_not_values(mode: str) -> None:
    row = {"pci.bus_id": "00000000:0C:00.0", "ecc.mode.current": mode, **ECC_CELLS}
    found = readings(rows_as_records([row]), metrics_of_columns(row))
    counts = {key: value for key, value in found.items() if key[0] in ECC_COUNTS}
    assert len(counts) >= 6
    assert {key: value for key, value in counts.items() if reason(value) is not Reason.NOT_SUPPORTED} == {}
    page = imported(row)
    of_page = {key: reason(value) for key, value in page.items() if key[0] in ECC_COUNTS}
    assert len(of_page) >= 4
    assert set(of_page.values()) == {Reason.NOT_SUPPORTED}
    assert page.get(("gpu_ecc_mode", ())) in (None, "disabled")


def test_zeros_with_ecc_are_values() -> None:
    row = {"pci.bus_id": "00000000:0C:00.0", "ecc.mode.current": "Enabled", **ECC_CELLS}
    found = readings(rows_as_records([row]), metrics_of_columns(row))
    assert found["gpu_sram_threshold_exceeded", ()] == 0
    assert found["gpu_sram_uncorrected_lifetime_errors_total", ("l2_cache",)] == 0
    assert imported(row)["gpu_sram_threshold_exceeded", ()] == 0


def test_errors_on_a_page_without_the_mode_are_values() -> None:
    row = {**ECC_CELLS, "ecc.errors.uncorrected.aggregate.total": "3"}
    page = imported(row)
    assert page["gpu_ecc_uncorrected_lifetime_errors_total", ()] == 3
    assert page["gpu_sram_threshold_exceeded", ()] == 0
