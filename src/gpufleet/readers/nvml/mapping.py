"""From the driver's answers to the catalogue: the only place that knows NVML's units."""

from collections.abc import Callable
from typing import NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, ValueType
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import CALLS, FAN_SPEED, NUMBERS
from gpufleet.readers.nvml.context import NOT_SUPPORTED
from gpufleet.readers.nvml.parse import absence_of, check, field_of, is_sentinel, label_of, part_of, state_of
from gpufleet.readers.nvml.protocol import Answer, DeviceRecord

Convert = Callable[[protocol.Value], Value | None]
"""Turns a raw value into the catalogue's unit; None where the raw value says nothing."""

VGPU_GUEST = 2
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU: this process runs inside a vGPU guest."""


class Row(NamedTuple):
    """Where one metric comes from.

    Attributes:
        metric: catalogue name.
        call: key in `calls.CALLS`.
        convert: to the catalogue's unit; None for a numbered state.
        part: which of several values of the call.
        field: the field id, where the call is a batch of fields and `part` is the position in it.
        bits: width of NVML's result; its all-ones mean "no value".
    """

    metric: str
    call: str
    convert: Convert | None
    part: int | None = None
    field: int | None = None
    bits: int = 32


def _number(value: protocol.Value) -> int | float:
    if isinstance(value, int | float):
        return value
    raise TypeError(f"the driver's answer is no number but {type(value).__name__}")


def _same(value: protocol.Value) -> Value:
    return int(_number(value))


def _degrees(value: protocol.Value) -> Value:
    return float(_number(value))


def _sensor_degrees(value: protocol.Value) -> Value | None:
    """A board without the sensor answers 0 (seen on boards without HBM): that is no temperature."""
    return float(_number(value)) or None


def _percent(value: protocol.Value) -> Value:
    return _number(value) / 100


def _milli(value: protocol.Value) -> Value:
    return _number(value) / 1000


def _mega(value: protocol.Value) -> Value:
    return int(_number(value)) * 1_000_000


def _text(value: protocol.Value) -> Value | None:
    return (str(value).strip() or None) if isinstance(value, str | int) else None


def _capability(value: protocol.Value) -> Value | None:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, int) for part in value):
        return f"{value[0]}.{value[1]}"
    return None


_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}


def _architecture(value: protocol.Value) -> Value:
    number = int(_number(value))
    return _ARCHITECTURES.get(number, f"unnamed ({number})")


_FIELDS = "nvmlDeviceGetFieldValues(82, 186)"
_MEMORY, _BAR1, _ROWS = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetRemappedRows"
_ECC = "nvmlDeviceGetTotalEccErrors"

ROWS: tuple[Row, ...] = (
    Row("gpu_utilization_ratio", "nvmlDeviceGetUtilizationRates", _percent, 0),
    Row("gpu_memory_activity_ratio", "nvmlDeviceGetUtilizationRates", _percent, 1),
    Row("gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", _percent),
    Row("gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", _percent),
    Row("gpu_jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization", _percent),
    Row("gpu_ofa_utilization_ratio", "nvmlDeviceGetOfaUtilization", _percent),
    Row("gpu_memory_total_bytes", _MEMORY, _same, 0, bits=64),
    Row("gpu_memory_used_bytes", _MEMORY, _same, 1, bits=64),
    Row("gpu_memory_free_bytes", _MEMORY, _same, 2, bits=64),
    Row("gpu_memory_reserved_bytes", _MEMORY, _same, 3, bits=64),
    Row("gpu_bar1_total_bytes", _BAR1, _same, 0, bits=64),
    Row("gpu_bar1_used_bytes", _BAR1, _same, 1, bits=64),
    Row("gpu_temperature_celsius", "temperature", _degrees),
    Row("gpu_memory_temperature_celsius", _FIELDS, _sensor_degrees, 0, field=82),
    Row("gpu_temperature_margin_celsius", "nvmlDeviceGetMarginTemperature", _degrees),
    Row("gpu_power_watts", "nvmlDeviceGetPowerUsage", _milli),
    Row("gpu_power_instant_watts", _FIELDS, _milli, 1, field=186),
    Row("gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", _milli),
    Row("gpu_power_default_limit_watts", "nvmlDeviceGetPowerManagementDefaultLimit", _milli),
    Row("gpu_energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", _milli, bits=64),
    Row("gpu_graphics_clock_hertz", "nvmlDeviceGetClockInfo(GRAPHICS)", _mega),
    Row("gpu_sm_clock_hertz", "nvmlDeviceGetClockInfo(SM)", _mega),
    Row("gpu_memory_clock_hertz", "nvmlDeviceGetClockInfo(MEM)", _mega),
    Row("gpu_video_clock_hertz", "nvmlDeviceGetClockInfo(VIDEO)", _mega),
    Row("gpu_sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo(SM)", _mega),
    Row("gpu_clock_event_reasons_mask", "clock event reasons", _same, bits=64),
    Row("gpu_performance_state", "nvmlDeviceGetPerformanceState", _same),
    Row("gpu_ecc_corrected_errors_total", f"{_ECC}(CORRECTED, VOLATILE)", _same, bits=64),
    Row("gpu_ecc_uncorrected_errors_total", f"{_ECC}(UNCORRECTED, VOLATILE)", _same, bits=64),
    Row("gpu_ecc_corrected_lifetime_errors_total", f"{_ECC}(CORRECTED, AGGREGATE)", _same, bits=64),
    Row("gpu_ecc_uncorrected_lifetime_errors_total", f"{_ECC}(UNCORRECTED, AGGREGATE)", _same, bits=64),
    Row("gpu_remapped_rows_correctable", _ROWS, _same, 0),
    Row("gpu_remapped_rows_uncorrectable", _ROWS, _same, 1),
    Row("gpu_row_remap_pending", _ROWS, _same, 2),
    Row("gpu_row_remap_failed", _ROWS, _same, 3),
    Row("gpu_recovery_action", "nvmlDeviceGetFieldValues(230)", None, 0, field=230),
    Row("gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration", _same),
    Row("gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth", _same),
    Row("gpu_pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", _same),
    Row("gpu_pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth", _same),
    Row("gpu_pcie_replays_total", "nvmlDeviceGetPcieReplayCounter", _same),
    Row("gpu_ecc_mode", "nvmlDeviceGetEccMode", None, 0),
    Row("gpu_persistence_mode", "nvmlDeviceGetPersistenceMode", None),
    Row("gpu_compute_mode", "nvmlDeviceGetComputeMode", None),
    Row("gpu_compute_processes", "nvmlDeviceGetComputeRunningProcesses_v3", _same),
    Row("gpu_name", "nvmlDeviceGetName", _text),
    Row("gpu_serial", "nvmlDeviceGetSerial", _text),
    Row("gpu_board_part_number", "nvmlDeviceGetBoardPartNumber", _text),
    Row("gpu_vbios_version", "nvmlDeviceGetVbiosVersion", _text),
    Row("gpu_architecture", "nvmlDeviceGetArchitecture", _architecture),
    Row("gpu_compute_capability", "nvmlDeviceGetCudaComputeCapability", _capability),
    Row("gpu_minor_number", "nvmlDeviceGetMinorNumber", _text),
    Row("gpu_inforom_image_version", "nvmlDeviceGetInforomImageVersion", _text),
    Row("gpu_gsp_firmware_version", "nvmlDeviceGetGspFirmwareVersion", _text),
    Row("gpu_module_id", "nvmlDeviceGetModuleId", _text),
)
"""Metrics that come from one call; `gpu_state`, `gpu_pci_address` and the modes come from elsewhere."""

_POSITIONS = {lane: {call.key: position for position, call in enumerate(calls)} for lane, calls in CALLS.items()}
_LANE_ROWS = {
    lane: tuple((row, CATALOGUE[row.metric]) for row in ROWS if CATALOGUE[row.metric].lane == lane) for lane in CALLS
}

MIG_MODE, VIRTUALIZATION_MODE = CATALOGUE["gpu_mig_mode"], CATALOGUE["gpu_virtualization_mode"]
REASON_ROW, MASK_ROW, FAN_ROW = "gpu_clock_event_active", "gpu_clock_event_reasons_mask", "gpu_fan_speed_ratio"

_ANSWERED = {row.metric for row in ROWS} | {"gpu_state", "gpu_pci_address", MIG_MODE.name, VIRTUALIZATION_MODE.name}

DEVICE_METRICS: dict[Lane, tuple[str, ...]] = {
    lane: tuple(metric.name for metric in CATALOGUE.values() if metric.name in _ANSWERED and metric.lane is lane)
    for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)
}
"""Every metric without dimensions that this reader answers for, by lane."""


class Modes(NamedTuple):
    """What changes the meaning of "not supported"."""

    mig: bool
    guest: bool


def map_device(record: DeviceRecord, lane: Lane) -> tuple[dict[str, Value | Absent], tuple[DimValue, ...]]:
    """Return the readings of a device that answered, without what is known of it from elsewhere."""
    mig = part_of(record.mig, 0)
    modes = Modes(mig.value == 1, record.virtualization.value == VGPU_GUEST)
    positions = _POSITIONS[lane]
    values: dict[str, Value | Absent] = {}
    for row, metric in _LANE_ROWS[lane]:
        answer = record.answers[positions[row.call]]
        values[metric.name] = read(row, metric, answer, modes)
    if lane is MIG_MODE.lane:
        values[MIG_MODE.name] = _state(MIG_MODE, mig, modes)
    if lane is VIRTUALIZATION_MODE.lane:
        values[VIRTUALIZATION_MODE.name] = _state(VIRTUALIZATION_MODE, record.virtualization, modes)
    if lane is not Lane.FAST:
        return values, ()
    fans = record.answers[positions["nvmlDeviceGetNumFans"]]
    return values, (*active_reasons(values[MASK_ROW]), *_fan_speeds(fans, modes))


def read(row: Row, metric: Metric, answer: Answer, modes: Modes) -> Value | Absent:
    """Return one metric's reading from its call's answer."""
    if modes.mig and _by_nature(metric, Reason.NOT_IN_MIG_MODE):
        return Absent(Reason.NOT_IN_MIG_MODE)
    call = label_of(answer.asked)
    if row.field is None:
        answer = part_of(answer, row.part)
    else:
        call = f"FI {row.field}"
        answer = field_of(answer, row.part or 0)
    if answer.code:
        return _why(metric, answer, call, modes)
    if is_sentinel(answer.value, row.bits):
        return Absent(Reason.INVALID_VALUE, call)
    if row.convert is None:
        return state_of(metric, answer.value, call)
    try:
        value = row.convert(answer.value)
    except TypeError:
        return Absent(Reason.INVALID_VALUE, call)
    if value is None:
        return Absent(Reason.NO_DATA if metric.type is ValueType.TEXT else Reason.NOT_SUPPORTED, call)
    return check(metric, value, call)


def active_reasons(mask: Value | Absent) -> tuple[DimValue, ...]:
    """Return one 0 or 1 a reason for which clocks can be held down; all absent if the mask is."""
    if isinstance(mask, int):
        return tuple(DimValue(REASON_ROW, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS)
    why = mask if isinstance(mask, Absent) else Absent(Reason.INVALID_VALUE)
    return tuple(DimValue(REASON_ROW, (name,), why) for name, _ in CLOCK_EVENT_REASONS)


def absent_device(why: Absent, lane: Lane) -> tuple[dict[str, Value | Absent], tuple[DimValue, ...]]:
    """Return the readings of a device that gave nothing: everything this reader answers for, absent."""
    values: dict[str, Value | Absent] = dict.fromkeys(DEVICE_METRICS[lane], why)
    dims = (*active_reasons(why), DimValue(FAN_ROW, ("0",), why)) if lane is Lane.FAST else ()
    return values, dims


def cuda_version(number: protocol.Value) -> Value | None:
    """Turn NVML's 13000 into `13.0` (major times 1000 plus minor times 10)."""
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) and number > 0 else None


def _fan_speeds(answer: Answer, modes: Modes) -> tuple[DimValue, ...]:
    """Return a speed a fan; a board that has none is told once, as its first fan's absence."""
    metric = CATALOGUE[FAN_ROW]
    if answer.code or not isinstance(answer.value, list) or not answer.value:
        missing = answer if answer.code else Answer(NOT_SUPPORTED, None, answer.asked)
        return (DimValue(FAN_ROW, ("0",), _why(metric, missing, label_of(answer.asked), modes)),)
    row = Row(FAN_ROW, "", _percent)
    entries = [field_of(answer, fan) for fan in range(len(answer.value))]
    speeds = [read(row, metric, Answer(e.code, e.value, NUMBERS[FAN_SPEED]), modes) for e in entries]
    return tuple(DimValue(FAN_ROW, (str(fan),), speed) for fan, speed in enumerate(speeds))


def _state(metric: Metric, answer: Answer, modes: Modes) -> Value | Absent:
    call = label_of(answer.asked)
    return _why(metric, answer, call, modes) if answer.code else state_of(metric, answer.value, call)


def _why(metric: Metric, answer: Answer, call: str, modes: Modes) -> Absent:
    why = absence_of(answer.code, call, answer.value)
    if why.reason is Reason.NOT_SUPPORTED and modes.guest and _by_nature(metric, Reason.NOT_IN_GUEST):
        return Absent(Reason.NOT_IN_GUEST, call)
    return why


def _by_nature(metric: Metric, reason: Reason) -> bool:
    return any(case.reason is reason for case in metric.absent_when)
