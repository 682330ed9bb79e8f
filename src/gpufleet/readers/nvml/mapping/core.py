"""Identity of the board, modes, and the performance state."""

from gpufleet.model.reading import Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.mapping.row import Row, field_row
from gpufleet.readers.nvml.mapping.units import number, same, text

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
    found = int(number(value))
    return _ARCHITECTURES.get(found, f"unnamed ({found})")


def _capability(value: protocol.Value) -> Value | None:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, int) for part in value):
        return f"{value[0]}.{value[1]}"
    return None


def _guid(value: protocol.Value) -> Value | None:
    """Write a GUID of 16 bytes, in hexadecimal digits; all zero is none."""
    return f"0x{value}" if isinstance(value, str) and value.strip("0") else None


def _serial(value: protocol.Value) -> Value | None:
    """Write what a serial number of 16 bytes says, in hexadecimal digits, up to the first that is none."""
    raw = bytes.fromhex(value) if isinstance(value, str) else b""
    return raw.split(b"\0")[0].decode("ascii", "replace").strip() or None


_PLATFORM = "nvmlDeviceGetPlatformInfo"

ROWS = (
    Row("gpu_performance_state", "nvmlDeviceGetPerformanceState", same),
    field_row("gpu_recovery_action", "recovery action", None),
    Row("gpu_persistence_mode", "nvmlDeviceGetPersistenceMode", None),
    Row("gpu_compute_mode", "nvmlDeviceGetComputeMode", None),
    Row("gpu_name", "nvmlDeviceGetName", text),
    Row("gpu_serial", "nvmlDeviceGetSerial", text),
    Row("gpu_board_part_number", "nvmlDeviceGetBoardPartNumber", text),
    Row("gpu_vbios_version", "nvmlDeviceGetVbiosVersion", text),
    Row("gpu_architecture", "nvmlDeviceGetArchitecture", _architecture),
    Row("gpu_compute_capability", "nvmlDeviceGetCudaComputeCapability", _capability),
    Row("gpu_minor_number", "nvmlDeviceGetMinorNumber", text),
    Row("gpu_inforom_image_version", "nvmlDeviceGetInforomImageVersion", text),
    Row("gpu_gsp_firmware_version", "nvmlDeviceGetGspFirmwareVersion", text),
    Row("gpu_module_id", "nvmlDeviceGetModuleId", text),
    Row("gpu_accounting_mode", "nvmlDeviceGetAccountingMode", None),
    Row("gpu_gsp_firmware_mode", "nvmlDeviceGetGspFirmwareMode", None),
    Row("gpu_display_attached", "nvmlDeviceGetDisplayMode", None),
    Row("gpu_display_active", "nvmlDeviceGetDisplayActive", None),
    Row("gpu_addressing_mode", "nvmlDeviceGetAddressingMode", None),
    Row("gpu_memory_numa_node", "nvmlDeviceGetNumaNodeId", same),
    Row("gpu_cuda_cores", "nvmlDeviceGetNumGpuCores", same),
    Row("gpu_memory_bus_width", "nvmlDeviceGetMemoryBusWidth", same),
    Row("gpu_fabric_guid", _PLATFORM, _guid, 0, bits=0),
    Row("gpu_chassis_serial", _PLATFORM, _serial, 1, bits=0),
    Row("gpu_chassis_slot", _PLATFORM, text, 2, bits=0),
    Row("gpu_tray_index", _PLATFORM, text, 3, bits=0),
    Row("gpu_host_id", _PLATFORM, text, 4, bits=0),
    Row("gpu_platform_module_id", _PLATFORM, text, 6, bits=0),
)
