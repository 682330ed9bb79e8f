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
)
