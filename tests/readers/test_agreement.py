"""Readers and formats agree on what a board has: pairs of outputs of one board."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpufleet.codecs.dcgm_wire.values import COMPUTE_INSTANCE
from gpufleet.codecs.nvidia_smi import DeviceRecord, parse_capture, parse_csv, parse_text, parse_xml
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.decoding import decode
from gpufleet.decoding.format import CapturedInput
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER, PREFIX
from gpufleet.fleet.board import FABRIC_DETAILS, FABRIC_STATE, HIDDEN_BY_MIG, MEMORY_ACTIVITY, MODULE_IDS
from gpufleet.fleet.ecc import ECC_COUNTS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.driver_texts import text_reason
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.model.view import ViewKind
from gpufleet.ports.channel import ExecResult
from gpufleet.readers.exporter.mapping import samples_of
from gpufleet.readers.nvidia_smi.machine import machine_sample
from gpufleet.readers.nvidia_smi.mapping.devices import ALL_METRICS, RequestedMetrics, metrics_of_columns
from gpufleet.readers.nvidia_smi.mapping.rows import LANES
from gpufleet.readers.nvidia_smi.parse import PassOutputs
from gpufleet.readers.nvidia_smi.plan import Plan
from gpufleet.readers.nvidia_smi.samples import gpu_sample, modes_by_key
from gpufleet.readers.nvidia_smi.views import identify, rows_as_records
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.simulate.dcgm.state import EngineState
from tests.fakes.nvidia_smi.standin import DATA
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import cut_into_mig
from tests.fakes.nvml.scenario import Scenario
from tests.readers.dcgm.engines import reading
from tests.readers.nvml.rig import PATIENT

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
    different = {key for key in both if (reason(rows[key]) or rows[key]) != (reason(page[key]) or page[key])}
    assert {key: (rows[key], page[key]) for key in different} == {}


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
    "ecc.errors.uncorrected.aggregate.total": "[N/A]",
    "ecc.errors.corrected.volatile.dram": "[N/A]",
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
    assert len(of_page) >= 2
    assert set(of_page.values()) == {Reason.NOT_SUPPORTED}
    assert page.get(("gpu_ecc_mode", ())) in (None, "disabled")


@pytest.mark.parametrize(("total", "known"), [("0", False), ("40960", True)])
def test_protected_memory_counts_in_confidential_mode_only(total: str, known: bool) -> None:
    row = {"pci.bus_id": "00000000:0C:00.0", "protected_memory.total": f"{total} MiB", "protected_memory.used": "0 MiB"}
    found = readings(rows_as_records([row]), metrics_of_columns(row))
    page = TextParser().parse(
        f'{PREFIX}protected_memory_total_bytes{{uuid="1"}} {int(total) << 20}\n'
        f'{PREFIX}protected_memory_used_bytes{{uuid="1"}} 0\n'.encode()
    )
    (sample,) = samples_of(page, NVIDIA_GPU_EXPORTER, 1, reader="x", where="x").samples
    for metric in ("gpu_protected_memory_total_bytes", "gpu_protected_memory_used_bytes"):
        assert reason(found[metric, ()]) is (None if known else Reason.NOT_SUPPORTED)
        assert reason(sample.values[metric]) is (None if known else Reason.NOT_SUPPORTED)


def test_zeros_with_ecc_are_values() -> None:
    row = {"pci.bus_id": "00000000:0C:00.0", "ecc.mode.current": "Enabled", **ECC_CELLS}
    found = readings(rows_as_records([row]), metrics_of_columns(row))
    assert found["gpu_sram_threshold_exceeded", ()] == 0
    assert found["gpu_sram_uncorrected_lifetime_errors_total", ("l2_cache",)] == 0
    assert imported(row)["gpu_sram_threshold_exceeded", ()] == 0


@pytest.mark.parametrize("total", ["[N/A]", "0", "3"])
def test_counts_without_the_mode_are_values_if_there_is_a_total(total: str) -> None:
    row = {"pci.bus_id": "00000000:0C:00.0", **ECC_CELLS, "ecc.errors.uncorrected.aggregate.total": total}
    found, page = readings(rows_as_records([row]), metrics_of_columns(row)), imported(row)
    shown = [one["gpu_sram_threshold_exceeded", ()] for one in (found, page)]
    if total == "[N/A]":  # the exporter omits the mode of boards without ECC
        assert [reason(one) for one in shown] == [Reason.NOT_REPORTED, Reason.NOT_SUPPORTED]
        return
    assert shown == [0, 0]
    totals = [one["gpu_ecc_uncorrected_lifetime_errors_total", ()] for one in (found, page)]
    assert totals == [int(total)] * 2


@pytest.mark.parametrize(("slot", "known"), [("0", False), ("3", True)])
def test_place_without_the_serial_column_is_no_default(slot: str, known: bool) -> None:
    place = {"platform.slot_number": slot, "platform.tray_index": "0", "platform.host_id": "1"}
    row = {"pci.bus_id": "00000000:0C:00.0", **place}
    found = readings(rows_as_records([row]), metrics_of_columns(row))
    for metric, cell in zip(("gpu_chassis_slot", "gpu_tray_index", "gpu_host_id"), place.values(), strict=True):
        value = found[metric, ()]
        assert value == cell if known else reason(value) is Reason.NOT_REPORTED


@pytest.mark.parametrize(("cell", "state"), [("Yes", "reset_required"), ("No", None)])
def test_required_reset_is_the_state_in_every_format(cell: str, state: str | None) -> None:
    row = {"pci.bus_id": "00000000:0C:00.0", "reset_status.reset_required": cell, "temperature.gpu": "40"}
    found = readings(rows_as_records([row]), metrics_of_columns(row))
    assert found["gpu_state", ()] == (state or "ok")
    assert imported(row).get(("gpu_state", ())) == state


PROTECTED = ("gpu_protected_memory_total_bytes", "gpu_protected_memory_used_bytes")
IDENTITY = ("gpu_serial", "gpu_vbios_version")
LACKED = {*ECC_COUNTS, *RACK, *MODULE_IDS, *PROTECTED, *IDENTITY, *FABRIC_DETAILS, FABRIC_STATE, MEMORY_ACTIVITY}
"""Metrics of what a card without ECC, fabric, memory of its own, confidential computing and identity lacks."""

BARE_ROW = {
    "pci.bus_id": "00000000:0C:00.0",
    "name": "Tesla T4",
    "ecc.mode.current": "[N/A]",
    **ECC_CELLS,
    "serial": "0",
    "vbios_version": "00.00.00.00.00",
    "protected_memory.total": "0 MiB",
    "protected_memory.used": "0 MiB",
    "platform.chassis_serial_number": "[N/A]",
    "platform.slot_number": "0",
    "platform.tray_index": "0",
    "platform.host_id": "1",
    "platform.module_id": "1",
    "platform.gpu_fabric_guid": "0x0000000000000000",
    "fabric.state": "N/A",
    "fabric.status": "N/A",
    "fabric.cliqueId": "N/A",
    "memory.total": "[N/A]",
    "utilization.memory": "0 %",
}

BLANK = 0x7FFF_FFFF_FFFF_FFF2
"""DCGM's number for a value that is not supported."""


async def by_nvml(fake: FakeNvml) -> Readings:
    fake.apply()
    reader = NvmlReader(limits=PATIENT, environment=fake.environment)
    found: Readings = {}
    try:
        for lane in LANES:
            (sample,) = [one for one in (await reader.read(lane)).samples if one.view is not None]
            found |= readings_of(sample)
    finally:
        await reader.close()
    return found


async def by_dcgm(folder: Path, engine: EngineState) -> Readings:
    found: Readings = {}
    async with reading(folder, engine) as (reader, _):
        for lane in (Lane.STATIC, Lane.FAST, Lane.SLOW):
            (sample,) = [one for one in (await reader.read(lane)).samples if one.view is not None]
            found |= readings_of(sample)
    return found


async def bare_by_nvml(folder: Path) -> Readings:
    fake = FakeNvml(folder, Scenario.healthy(1))
    board = fake.scenario.devices[0]
    modes = ("EccMode_current", "EccMode_pending", "ConfComputeMemSizeInfo_protected")
    board.numbers |= {f"nvmlDeviceGet{name}": 0 for name in (*modes, "ConfComputeProtectedMemoryUsage_used")}
    board.numbers |= dict.fromkeys(key for key in board.numbers if key.startswith("nvmlDeviceGetMemoryInfo"))
    board.numbers |= {"nvmlDeviceGetUtilizationRates_memory": 0, "nvmlDeviceGetModuleId": 1}
    board.rows["nvmlDeviceGetPlatformInfo"] = [(0, 0, 1, 1, 1)]
    board.rows["nvmlDeviceGetGpuFabricInfoV"] = [(0, 0, 0, 0, 0, 0)]
    board.texts |= {"nvmlDeviceGetPlatformInfo_serial": "", "nvmlDeviceGetSerial": "0"}
    board.texts |= {"nvmlDeviceGetVbiosVersion": "00.00.00.00.00", "nvmlDeviceGetName": "Tesla T4"}
    return await by_nvml(fake)


async def bare_by_dcgm(folder: Path) -> Readings:
    engine = EngineState.healthy(1)
    engine.gpus[0].values |= {300: 0, 310: 0, 311: 0, 312: 0, 313: 0, 53: "0", 85: "00.00.00.00.00"}
    engine.gpus[0].values |= {204: 0, 250: BLANK}
    return await by_dcgm(folder, engine)


async def test_every_reader_omits_what_a_board_lacks(tmp_path: Path) -> None:
    (tmp_path / "dcgm").mkdir()
    (tmp_path / "nvml").mkdir()
    of_reader = {
        "nvml": await bare_by_nvml(tmp_path / "nvml"),
        "dcgm": await bare_by_dcgm(tmp_path / "dcgm"),
        "nvidia_smi": readings(rows_as_records([BARE_ROW]), metrics_of_columns(BARE_ROW)),
        "imported": imported(BARE_ROW),
    }
    for reader, least in (("nvml", 28), ("dcgm", 7), ("nvidia_smi", 17), ("imported", 2)):
        covered = {key: value for key, value in of_reader[reader].items() if key[0] in LACKED}
        assert len(covered) >= least, reader
        kept = {key: value for key, value in covered.items() if reason(value) is not Reason.NOT_SUPPORTED}
        assert kept == {}, reader


async def test_no_reader_blames_the_chip_for_what_mig_hides(tmp_path: Path) -> None:
    fake, engine = FakeNvml(tmp_path, Scenario.healthy(1)), EngineState.healthy(1)
    board = fake.scenario.devices[0]
    board.enable_mig()
    board.numbers |= dict.fromkeys(key for key in board.numbers if "RemappedRows" in key)
    board.rows.pop("nvmlDeviceGetRowRemapperHistogram")
    engine.gpus[0].values |= {67: 1, **dict.fromkeys((*range(385, 390), *range(393, 397)), BLANK)}
    remaps = ("correctable", "uncorrectable", "pending", "failure", "histogram.max")
    row = {"pci.bus_id": "00000000:0C:00.0", "mig.mode.current": "Enabled"}
    row |= {f"remapped_rows.{name}": "[N/A]" for name in remaps}
    for found in (
        await by_nvml(fake),
        await by_dcgm(tmp_path, engine),
        readings(rows_as_records([row]), metrics_of_columns(row)),
    ):
        reasons = {key[0]: reason(value) for key, value in found.items() if key[0] in HIDDEN_BY_MIG}
        reasons.pop("gpu_remapped_rows_inactive", None)  # not in this driver
        assert len(reasons) == 5
        assert set(reasons.values()) == {Reason.NOT_IN_MIG_MODE}


UNKNOWN, GENERIC_ERROR = 999, -3
"""Return codes of NVML and DCGM: a driver error."""


async def mig_by_nvml(folder: Path, *, ended: bool) -> Value | Absent:
    fake = FakeNvml(folder, Scenario.healthy(1))
    (instance,) = cut_into_mig(fake.scenario, 0, (0,)).values()
    instance.codes["nvmlDeviceGetMemoryInfo_used"] = UNKNOWN
    if ended:
        instance.numbers = dict.fromkeys(instance.numbers, 0)
        instance.codes = dict.fromkeys(instance.numbers, UNKNOWN)
        instance.rows.clear()
    fake.apply()
    reader = NvmlReader(limits=PATIENT, environment=fake.environment)
    try:
        return state_of_gpu(await reader.read(Lane.FAST))
    finally:
        await reader.close()


async def mig_by_dcgm(folder: Path, *, ended: bool) -> Value | Absent:
    engine = EngineState.with_mig()
    fields = engine.parts[COMPUTE_INSTANCE, 0] if ended else (252,)
    engine.part_statuses[COMPUTE_INSTANCE, 0] = dict.fromkeys(fields, GENERIC_ERROR)
    async with reading(folder, engine, profiling=False) as (reader, _):
        return state_of_gpu(await reader.read(Lane.FAST))


def mig_by_nvidia_smi(*, ended: bool) -> Value | Absent:
    """Return the state of the first GPU of a log whose first MIG device prints errors."""
    log = (DATA / "xml-a100-mig-v12.xml").read_text()
    start = log.index("<fb_memory_usage>", log.index("<mig_device>"))
    end = log.index("</mig_device>", start)
    pattern = r"[0-9]+ MiB" if ended else r"(?<=<used>)12 MiB"
    broken = log[:start] + re.sub(pattern, "[Unknown Error]", log[start:end], count=0 if ended else 1) + log[end:]
    gpus, _ = identify(list(parse_xml(broken.encode()).devices))
    values = gpu_sample(gpus[0], Lane.FAST, ALL_METRICS, modes_by_key(gpus, {})[gpus[0].view.key], 1).values
    return values["gpu_state"]


def state_of_gpu(done: Round) -> Value | Absent:
    (gpu,) = [one for one in done.samples if one.view is not None and one.view.kind is ViewKind.GPU]
    return gpu.values["gpu_state"]


@pytest.mark.parametrize(("ended", "state"), [(False, "error"), (True, "ok")])
async def test_error_of_the_memory_of_a_mig_device_is_an_error_of_its_gpu(
    tmp_path: Path, ended: bool, state: str
) -> None:
    """A MIG device without any number may have ended."""
    (tmp_path / "dcgm").mkdir()
    (tmp_path / "nvml").mkdir()
    assert {
        "nvml": await mig_by_nvml(tmp_path / "nvml", ended=ended),
        "dcgm": await mig_by_dcgm(tmp_path / "dcgm", ended=ended),
        "nvidia_smi": mig_by_nvidia_smi(ended=ended),
    } == dict.fromkeys(("nvml", "dcgm", "nvidia_smi"), state)


@pytest.mark.parametrize("printed", ["N/A", "[N/A]", "[Unknown Error]", "Not Found"])
def test_reader_and_decode_agree_on_a_version_that_is_not_known(printed: str) -> None:
    """Both report the reason that the log gives: only a version that is not printed is not reported."""
    log = re.sub(rb"(<cuda_version>)[^<]*", rb"\g<1>" + printed.encode(), (DATA / "xml-h100.xml").read_bytes())
    outputs = PassOutputs()
    plan = Plan(columns=(), log=True, apps=False, requested=RequestedMetrics(frozenset()))
    outputs.add_log(ExecResult(exit_code=0, stdout=log, stderr=b""), plan)
    own = machine_sample(Lane.STATIC, 1, shown_gpus=1, driver=outputs.driver, cuda=outputs.cuda)
    assert own is not None
    read = own.values["nvidia_cuda_version"]
    (snapshot,) = decode(CapturedInput(content=log, name="x", at=0))[1].snapshots
    assert isinstance(read, Absent)
    assert read.reason is text_reason(printed)
    assert snapshot.host.readings["nvidia_cuda_version"].absent is read.reason


FAN = ("gpu_fan_speed_ratio", ("0",))


async def fan_by_nvml(folder: Path, product: str) -> Readings:
    fake = FakeNvml(folder, Scenario.healthy(1))
    board = fake.scenario.devices[0]
    board.texts["nvmlDeviceGetName"] = product
    board.numbers |= {"nvmlDeviceGetNumFans": 1, "nvmlDeviceGetFanSpeed,0": 0}
    return await by_nvml(fake)


async def fan_by_dcgm(folder: Path, product: str) -> Readings:
    engine = EngineState.healthy(1)
    engine.gpus[0].values |= {50: product, 191: 0}
    return await by_dcgm(folder, engine)


@pytest.mark.parametrize(
    ("product", "found"),
    [("NVIDIA A10G", Reason.NOT_SUPPORTED), ("NVIDIA A40", Reason.NOT_SUPPORTED), ("NVIDIA RTX A6000", 0)],
)
async def test_fan_speed_of_zero_needs_a_fan(tmp_path: Path, product: str, found: object) -> None:
    (tmp_path / "dcgm").mkdir()
    (tmp_path / "nvml").mkdir()
    row = {"pci.bus_id": "00000000:0C:00.0", "name": product, "fan.speed": "0 %"}
    of_reader = {
        "nvml": await fan_by_nvml(tmp_path / "nvml", product),
        "dcgm": await fan_by_dcgm(tmp_path / "dcgm", product),
        "nvidia_smi": readings(rows_as_records([row]), metrics_of_columns(row)),
    }
    assert {name: reason(one[FAN]) or one[FAN] for name, one in of_reader.items()} == dict.fromkeys(of_reader, found)


@pytest.mark.parametrize(("product", "found"), [("NVIDIA L40S", Reason.NOT_SUPPORTED), ("NVIDIA H200", 0)])
async def test_nvlink_traffic_of_zero_needs_nvlink(tmp_path: Path, product: str, found: object) -> None:
    engine = EngineState.healthy(1)
    engine.gpus[0].values |= {50: product, 1011: 0, 1012: 0}
    by_engine = await by_dcgm(tmp_path, engine)
    for metric in ("gpu_nvlink_transmit_bytes_per_second", "gpu_nvlink_receive_bytes_per_second"):
        assert (reason(by_engine[metric, ()]) or by_engine[metric, ()]) == found
