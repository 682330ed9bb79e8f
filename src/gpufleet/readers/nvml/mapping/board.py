"""Rows for board identity, modes, clocks, engines, memory, temperature, power, fans and confidential computing."""

import functools

from gpufleet.fleet.board import drop_readiness_without_confidential_mode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.catalogue.gpu_board import TEMPERATURE_THRESHOLDS
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import SYSTEM_CALLS
from gpufleet.readers.nvml.calls.board import FAN_RPM, FAN_SPEED, THRESHOLD
from gpufleet.readers.nvml.mapping.row import NO_MODES, MetricRow, field_row, field_table, read
from gpufleet.readers.nvml.mapping.units import (
    degrees,
    kibi,
    mega,
    milli,
    nano,
    number,
    percent,
    same,
    sensor_degrees,
    text,
)
from gpufleet.readers.nvml.protocol import CallResult

CLOCK_EVENT_MASK = "gpu_clock_event_reasons_mask"

_CLOCK_EVENTS = (
    "sw_power_cap",
    "thermal",
    "sync_boost",
    "board_limit",
    "low_utilization",
    "reliability",
    "applications_clocks",
    "base_clocks",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
)

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

_MARGINS = ("shutdown", "slowdown", "memory_max", "gpu_max")

_MEMORY, _BAR1 = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetBAR1MemoryInfo"
_PLATFORM = "nvmlDeviceGetPlatformInfo"
_PROTECTED_SIZES = "nvmlDeviceGetConfComputeMemSizeInfo"
_PROTECTED_USAGE = "nvmlDeviceGetConfComputeProtectedMemoryUsage"
_CONFIDENTIAL_STATE, _CONFIDENTIAL_SETTINGS = "nvmlSystemGetConfComputeState", "nvmlSystemGetConfComputeSettings"


def _architecture(value: protocol.Value) -> Value:
    found = int(number(value))
    return _ARCHITECTURES.get(found, f"unnamed ({found})")


def _capability(value: protocol.Value) -> Value | None:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, int) for part in value):
        return f"{value[0]}.{value[1]}"
    return None


def _guid(value: protocol.Value) -> Value | None:
    """Format a GUID of 16 bytes as hexadecimal digits; all zero means none."""
    return f"0x{value}" if isinstance(value, str) and value.strip("0") else None


def _serial(value: protocol.Value) -> Value | None:
    """Decode a serial number of 16 bytes, given as hexadecimal digits, up to the first zero byte."""
    raw = bytes.fromhex(value) if isinstance(value, str) else b""
    return raw.split(b"\0")[0].decode("ascii", "replace").strip() or None


MEMORY_ROWS = (
    MetricRow("gpu_memory_total_bytes", _MEMORY, same, 0, bits=64),
    MetricRow("gpu_memory_used_bytes", _MEMORY, same, 1, bits=64),
    MetricRow("gpu_memory_free_bytes", _MEMORY, same, 2, bits=64),
    MetricRow("gpu_memory_reserved_bytes", _MEMORY, same, 3, bits=64),
    MetricRow("gpu_bar1_total_bytes", _BAR1, same, 0, bits=64),
    MetricRow("gpu_bar1_used_bytes", _BAR1, same, 1, bits=64),
)
"""Readings of a GPU or a MIG device."""

ROWS = (
    # engines
    MetricRow("gpu_utilization_ratio", "nvmlDeviceGetUtilizationRates", percent, 0),
    MetricRow("gpu_memory_activity_ratio", "nvmlDeviceGetUtilizationRates", percent, 1),
    MetricRow("gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", percent),
    MetricRow("gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", percent),
    MetricRow("gpu_jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization", percent),
    MetricRow("gpu_ofa_utilization_ratio", "nvmlDeviceGetOfaUtilization", percent),
    *MEMORY_ROWS,
    # temperature, power, fans
    MetricRow("gpu_temperature_celsius", "temperature", degrees),
    field_row("gpu_memory_temperature_celsius", "memory temperature", sensor_degrees),
    MetricRow("gpu_temperature_margin_celsius", "nvmlDeviceGetMarginTemperature", degrees),
    MetricRow("gpu_power_watts", "nvmlDeviceGetPowerUsage", milli),
    field_row("gpu_power_instant_watts", "power, instant", milli),
    MetricRow("gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", milli),
    MetricRow("gpu_power_default_limit_watts", "nvmlDeviceGetPowerManagementDefaultLimit", milli),
    MetricRow("gpu_energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", milli, bits=64),
    MetricRow("gpu_fan_speed_ratio", "nvmlDeviceGetNumFans", percent, every=True, inner=FAN_SPEED),
    MetricRow(
        "gpu_temperature_threshold_celsius", THRESHOLD, degrees, every=True, names=TEMPERATURE_THRESHOLDS, sparse=True
    ),
    field_table("gpu_temperature_margin_threshold_celsius", "margin threshold", _MARGINS, degrees, bits=32),
    field_row("gpu_power_average_watts", "power, average", milli),
    field_row("gpu_power_requested_limit_watts", "power limit, requested", milli),
    field_row("gpu_power_limit_min_watts", "power limit, lowest", milli),
    field_row("gpu_power_limit_max_watts", "power limit, highest", milli),
    field_row("gpu_module_power_watts", "power, module, instant", milli),
    field_row("gpu_module_power_average_watts", "power, module, average", milli),
    field_row("gpu_module_power_limit_watts", "power limit, module", milli),
    field_row("gpu_module_power_default_limit_watts", "power limit, module, default", milli),
    field_row("gpu_module_power_requested_limit_watts", "power limit, module, requested", milli),
    field_row("gpu_module_power_limit_min_watts", "power limit, module, lowest", milli),
    field_row("gpu_module_power_limit_max_watts", "power limit, module, highest", milli),
    field_row("gpu_memory_power_watts", "power, memory, instant", milli),
    field_row("gpu_memory_power_average_watts", "power, memory, average", milli),
    MetricRow("gpu_fan_speed_rpm", "fan turns", same, every=True, inner=FAN_RPM),
    # clocks
    MetricRow("gpu_graphics_clock_hertz", "nvmlDeviceGetClockInfo(GRAPHICS)", mega),
    MetricRow("gpu_sm_clock_hertz", "nvmlDeviceGetClockInfo(SM)", mega),
    MetricRow("gpu_memory_clock_hertz", "nvmlDeviceGetClockInfo(MEM)", mega),
    MetricRow("gpu_video_clock_hertz", "nvmlDeviceGetClockInfo(VIDEO)", mega),
    MetricRow("gpu_sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo(SM)", mega),
    MetricRow("gpu_graphics_clock_max_hertz", "nvmlDeviceGetMaxClockInfo(GRAPHICS)", mega),
    MetricRow("gpu_memory_clock_max_hertz", "nvmlDeviceGetMaxClockInfo(MEM)", mega),
    MetricRow(CLOCK_EVENT_MASK, "clock event reasons", same, bits=64),
    field_table("gpu_clock_event_seconds_total", "clock event", _CLOCK_EVENTS, nano),
    # confidential computing
    MetricRow("gpu_protected_memory_total_bytes", _PROTECTED_SIZES, kibi, 0, bits=64),
    MetricRow("gpu_unprotected_memory_total_bytes", _PROTECTED_SIZES, kibi, 1, bits=64),
    MetricRow("gpu_protected_memory_used_bytes", _PROTECTED_USAGE, same, 0, bits=64),
    # identity and modes
    MetricRow("gpu_performance_state", "nvmlDeviceGetPerformanceState", same),
    field_row("gpu_recovery_action", "recovery action", None),
    MetricRow("gpu_persistence_mode", "nvmlDeviceGetPersistenceMode", None),
    MetricRow("gpu_compute_mode", "nvmlDeviceGetComputeMode", None),
    MetricRow("gpu_name", "nvmlDeviceGetName", text),
    MetricRow("gpu_serial", "nvmlDeviceGetSerial", text),
    MetricRow("gpu_board_part_number", "nvmlDeviceGetBoardPartNumber", text),
    MetricRow("gpu_vbios_version", "nvmlDeviceGetVbiosVersion", text),
    MetricRow("gpu_architecture", "nvmlDeviceGetArchitecture", _architecture),
    MetricRow("gpu_compute_capability", "nvmlDeviceGetCudaComputeCapability", _capability),
    MetricRow("gpu_minor_number", "nvmlDeviceGetMinorNumber", text),
    MetricRow("gpu_inforom_image_version", "nvmlDeviceGetInforomImageVersion", text),
    MetricRow("gpu_gsp_firmware_version", "nvmlDeviceGetGspFirmwareVersion", text),
    MetricRow("gpu_module_id", "nvmlDeviceGetModuleId", text),
    MetricRow("gpu_accounting_mode", "nvmlDeviceGetAccountingMode", None),
    MetricRow("gpu_gsp_firmware_mode", "nvmlDeviceGetGspFirmwareMode", None),
    MetricRow("gpu_display_attached", "nvmlDeviceGetDisplayMode", None),
    MetricRow("gpu_display_active", "nvmlDeviceGetDisplayActive", None),
    MetricRow("gpu_addressing_mode", "nvmlDeviceGetAddressingMode", None),
    MetricRow("gpu_memory_numa_node", "nvmlDeviceGetNumaNodeId", same),
    MetricRow("gpu_cuda_cores", "nvmlDeviceGetNumGpuCores", same),
    MetricRow("gpu_memory_bus_width", "nvmlDeviceGetMemoryBusWidth", same),
    MetricRow("gpu_fabric_guid", _PLATFORM, _guid, 0, bits=0),
    MetricRow("gpu_chassis_serial", _PLATFORM, _serial, 1, bits=0),
    MetricRow("gpu_chassis_slot", _PLATFORM, text, 2, bits=0),
    MetricRow("gpu_tray_index", _PLATFORM, text, 3, bits=0),
    MetricRow("gpu_host_id", _PLATFORM, text, 4, bits=0),
    MetricRow("gpu_platform_module_id", _PLATFORM, text, 6, bits=0),
)

SUPPORTED_EVENTS_ROW = MetricRow(CLOCK_EVENT_MASK, "supported clock event reasons", same, bits=64)
"""Mask for `supported_reasons`, read like the mask of active reasons; not a reading of its own."""

_SYSTEM_ROWS = (
    MetricRow("nvidia_confidential_environment", _CONFIDENTIAL_STATE, None, 0),
    MetricRow("nvidia_confidential_computing", _CONFIDENTIAL_STATE, None, 1),
    MetricRow("nvidia_confidential_devtools", _CONFIDENTIAL_STATE, None, 2),
    MetricRow("nvidia_confidential_multi_gpu", _CONFIDENTIAL_SETTINGS, None),
    MetricRow("nvidia_confidential_gpus_ready", "nvmlSystemGetConfComputeGpusReadyState", same),
)

SYSTEM_METRICS = tuple([row.metric for row in _SYSTEM_ROWS])
_SYSTEM_POSITIONS = {call.key: position for position, call in enumerate(SYSTEM_CALLS)}


def map_system(answers: tuple[CallResult, ...]) -> dict[str, Value | Absent]:
    """Return the machine's readings from the answers of `SYSTEM_CALLS`."""
    if not answers:
        return dict.fromkeys(SYSTEM_METRICS, Absent(Reason.NOT_COLLECTED))
    values = {
        row.metric: read(row, CATALOGUE[row.metric], answers[_SYSTEM_POSITIONS[row.call]], NO_MODES)
        for row in _SYSTEM_ROWS
    }
    drop_readiness_without_confidential_mode(values)
    return values


def active_reasons(mask: Value | Absent) -> tuple[DimValue, ...]:
    """Return 0 or 1 for each reason that limits clocks; all absent if the mask is."""
    return _split_mask("gpu_clock_event_active", mask)


def supported_reasons(mask: Value | Absent) -> tuple[DimValue, ...]:
    """Return 0 or 1 for each reason that this GPU can report; all absent if the mask is."""
    return _split_mask("gpu_clock_event_supported", mask)


@functools.lru_cache(256)  # GPUs have few different masks, and every pass splits them
def _split_mask(metric: str, mask: Value | Absent) -> tuple[DimValue, ...]:
    if isinstance(mask, int):
        return tuple([DimValue(metric, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS])
    why = mask if isinstance(mask, Absent) else Absent(Reason.INVALID_VALUE)
    return tuple([DimValue(metric, (name,), why) for name, _ in CLOCK_EVENT_REASONS])
