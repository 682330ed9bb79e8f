"""Rows of the catalogue about the board: limits of heat and power, clocks, modes. Ids 81 to 99, 500 to 520."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Absence
from gpufleet.model.catalogue.row import (
    COUNTER,
    DIM,
    ENUM,
    FLOAT,
    GAUGE,
    GUEST,
    INT,
    OLD_CHIP,
    OLD_DRIVER,
    SLOW,
    STATE,
    STATIC,
    TAIL,
    info,
    row,
)

NO_MODULE = Absence(Reason.NOT_SUPPORTED, "the GPU does not share a module with a CPU")
NO_FAN = Absence(Reason.NOT_SUPPORTED, "passively cooled boards have no fan")
NOT_CONFIDENTIAL = Absence(Reason.NOT_SUPPORTED, "confidential computing is off, or the chip does not support it")
NO_RACK = Absence(Reason.NOT_SUPPORTED, "the GPU is not part of a rack-scale system")
UNPROVEN_NUMBER = Absence(Reason.NOT_COLLECTED, "the field number in drivers 575.0 to 580.81 is not verified")

TEMPERATURE_THRESHOLDS = (
    "shutdown",
    "slowdown",
    "memory_max",
    "gpu_max",
    "acoustic_min",
    "acoustic_current",
    "acoustic_max",
    "platform_current",
)
"""nvmlTemperatureThresholds_t, by number."""

_ENABLE = ("disabled", "enabled")

# fmt: off
BOARD_METRICS = (
    # heat
    row(81, "gpu_temperature_threshold_celsius", GAUGE, FLOAT, "celsius",
        "Temperature thresholds by action; only thresholds of this board",
        low=-50, high=200, lane=STATIC, storage=DIM, dims=("threshold",), nvml=("nvmlDeviceGetTemperatureThreshold",),
        dcgm=(151, 152, 158, 159), absent=(OLD_CHIP, GUEST), otel="hw.temperature.limit"),
    row(82, "gpu_temperature_margin_threshold_celsius", GAUGE, FLOAT, "celsius",
        "Thresholds of the margin (`gpu_temperature_margin_celsius`) by action; can be negative",
        low=-200, high=200, lane=STATIC, storage=DIM, dims=("threshold",), nvml=("FI 193-196",),
        absent=(OLD_CHIP, OLD_DRIVER, GUEST)),
    # power
    row(83, "gpu_power_average_watts", GAUGE, FLOAT, "watts", "Board power, averaged over the last second",
        high=5000, storage=TAIL, nvml=("FI 185",), smi=("power.draw.average",),
        absent=(OLD_DRIVER, Absence(Reason.NOT_SUPPORTED, "GA100 does not offer it"), GUEST)),
    row(84, "gpu_power_requested_limit_watts", GAUGE, FLOAT, "watts", "Power limit requested by an administrator",
        high=5000, lane=SLOW, storage=TAIL, nvml=("FI 192",), dcgm=(160,), smi=("power.limit",),
        absent=(OLD_DRIVER, GUEST)),
    row(85, "gpu_power_limit_min_watts", GAUGE, FLOAT, "watts", "Lowest power limit that can be set",
        high=5000, lane=STATIC, storage=TAIL, nvml=("FI 187",), dcgm=(161,), smi=("power.min_limit",),
        absent=(OLD_DRIVER, GUEST)),
    row(86, "gpu_power_limit_max_watts", GAUGE, FLOAT, "watts", "Highest power limit that can be set",
        high=5000, lane=STATIC, storage=TAIL, nvml=("FI 188",), dcgm=(162,), smi=("power.max_limit",),
        absent=(OLD_DRIVER, GUEST)),
    row(87, "gpu_module_power_watts", GAUGE, FLOAT, "watts",
        "Power of the module that the GPU shares with a CPU, at the instant of reading",
        high=20_000, storage=TAIL, nvml=("FI 186 (module)",), smi=("module.power.draw.instant",),
        absent=(NO_MODULE, OLD_DRIVER, GUEST)),
    row(88, "gpu_module_power_average_watts", GAUGE, FLOAT, "watts",
        "Power of the module that the GPU shares with a CPU, averaged over the last second",
        high=20_000, storage=TAIL, nvml=("FI 185 (module)",), smi=("module.power.draw.average",),
        absent=(NO_MODULE, OLD_DRIVER, GUEST)),
    row(89, "gpu_module_power_limit_watts", GAUGE, FLOAT, "watts", "Power limit in force for that module",
        high=20_000, lane=SLOW, storage=TAIL, nvml=("FI 190 (module)",), smi=("module.enforced.power.limit",),
        absent=(NO_MODULE, OLD_DRIVER, GUEST)),
    # clocks
    row(91, "gpu_clock_event_seconds_total", COUNTER, FLOAT, "seconds",
        "Time with reduced clocks, by reason; the unit is nanoseconds according to nvml.h, not yet verified on a "
        "real board",
        lane=SLOW, storage=DIM, dims=("reason",), nvml=("FI 74-81", "FI 269-271"),
        dcgm=(240, 241, 242, 243, 244, 245, 246, 247, 1422, 1423, 1424),
        smi=("clocks_event_reasons_counters.sw_power_cap", "clocks_event_reasons_counters.sync_boost",
             "clocks_event_reasons_counters.sw_thermal_slowdown",
             "clocks_event_reasons_counters.hw_thermal_slowdown",
             "clocks_event_reasons_counters.hw_power_brake_slowdown"),
        absent=(OLD_CHIP, OLD_DRIVER, UNPROVEN_NUMBER, GUEST)),
    row(92, "gpu_clock_event_supported", GAUGE, INT, "", "1 if the GPU supports this reason for slow clocks, else 0",
        high=1, lane=STATIC, storage=DIM, dims=("reason",), nvml=("nvmlDeviceGetSupportedClocksEventReasons",),
        smi=("clocks_event_reasons.supported", "clocks_throttle_reasons.supported"), absent=(GUEST,)),
    row(93, "gpu_fan_speed_rpm", GAUGE, INT, "rpm", "Target fan speed in revolutions per minute",
        high=100_000, lane=SLOW, storage=DIM, dims=("fan",), nvml=("nvmlDeviceGetFanSpeedRPM",),
        absent=(NO_FAN, OLD_DRIVER, GUEST)),
    row(94, "gpu_graphics_clock_max_hertz", GAUGE, INT, "hertz", "Highest graphics clock",
        high=10e9, lane=STATIC, storage=TAIL, nvml=("nvmlDeviceGetMaxClockInfo(GRAPHICS)",),
        smi=("clocks.max.graphics",), absent=(GUEST,)),
    row(95, "gpu_memory_clock_max_hertz", GAUGE, INT, "hertz", "Highest memory clock",
        high=20e9, lane=STATIC, storage=TAIL, nvml=("nvmlDeviceGetMaxClockInfo(MEM)",), dcgm=(114, 1609),
        smi=("clocks.max.memory",), absent=(GUEST,)),
    # modes
    row(96, "gpu_ecc_mode_pending", STATE, ENUM, "", "Whether memory ECC will be on after the next reset",
        low=None, lane=STATIC, storage=TAIL, states=_ENABLE, nvml=("nvmlDeviceGetEccMode",), dcgm=(301,),
        smi=("ecc.mode.pending",), absent=(OLD_CHIP,)),
    row(98, "gpu_accounting_mode", STATE, ENUM, "", "Whether process accounting is on",
        low=None, lane=STATIC, storage=TAIL, states=_ENABLE, nvml=("nvmlDeviceGetAccountingMode",),
        smi=("accounting.mode",), absent=(OLD_CHIP,)),
    row(99, "gpu_gsp_firmware_mode", STATE, ENUM, "", "Whether the driver uses the GPU's own processor (GSP)",
        low=None, lane=STATIC, storage=TAIL, states=_ENABLE, nvml=("nvmlDeviceGetGspFirmwareMode",),
        smi=("gsp.mode.current",), absent=(OLD_CHIP, GUEST)),
    row(505, "gpu_display_attached", STATE, ENUM, "", "Whether a display is connected",
        low=None, lane=STATIC, storage=TAIL, states=_ENABLE, nvml=("nvmlDeviceGetDisplayMode",),
        smi=("display_mode",), absent=(OLD_CHIP,)),
    row(506, "gpu_display_active", STATE, ENUM, "", "Whether a display is driven, which takes device memory",
        low=None, lane=STATIC, storage=TAIL, states=_ENABLE, nvml=("nvmlDeviceGetDisplayActive",),
        smi=("display_active",), absent=(OLD_CHIP,)),
    row(507, "gpu_addressing_mode", STATE, ENUM, "",
        "How processes share the host's memory with the GPU: by page faults (hmm), or by the hardware (ats)",
        low=None, lane=STATIC, storage=TAIL, states=("none", "hmm", "ats"), nvml=("nvmlDeviceGetAddressingMode",),
        smi=("addressing_mode",), absent=(OLD_CHIP, OLD_DRIVER)),
    row(508, "gpu_memory_numa_node", GAUGE, INT, "",
        "NUMA node of the device memory on systems where the CPU addresses it; not the node of the nearest CPU",
        lane=STATIC, storage=TAIL, nvml=("nvmlDeviceGetNumaNodeId",), absent=(OLD_CHIP, OLD_DRIVER)),
    row(509, "gpu_cuda_cores", GAUGE, INT, "", "CUDA cores", lane=STATIC, storage=TAIL,
        nvml=("nvmlDeviceGetNumGpuCores",), absent=(GUEST,)),
    row(510, "gpu_memory_bus_width", GAUGE, INT, "", "Width of the memory bus in bits", lane=STATIC, storage=TAIL,
        nvml=("nvmlDeviceGetMemoryBusWidth",), absent=(GUEST,)),
    # confidential computing
    row(511, "gpu_protected_memory_total_bytes", GAUGE, INT, "bytes",
        "Device memory that confidential computing protects", lane=SLOW, storage=TAIL,
        nvml=("nvmlDeviceGetConfComputeMemSizeInfo.protectedMemSizeKib",), smi=("protected_memory.total",),
        absent=(NOT_CONFIDENTIAL, OLD_DRIVER)),
    row(512, "gpu_unprotected_memory_total_bytes", GAUGE, INT, "bytes",
        "Device memory that confidential computing does not protect", lane=SLOW, storage=TAIL,
        nvml=("nvmlDeviceGetConfComputeMemSizeInfo.unprotectedMemSizeKib",), absent=(NOT_CONFIDENTIAL, OLD_DRIVER)),
    row(513, "gpu_protected_memory_used_bytes", GAUGE, INT, "bytes",
        "Protected device memory in use", lane=SLOW, storage=TAIL,
        nvml=("nvmlDeviceGetConfComputeProtectedMemoryUsage.used",), smi=("protected_memory.used",),
        absent=(NOT_CONFIDENTIAL, OLD_DRIVER)),
    # position in a rack
    info(514, "gpu_chassis_serial", "Serial number of the chassis", nvml="nvmlDeviceGetPlatformInfo",
         smi="platform.chassis_serial_number", absent=(NO_RACK, OLD_DRIVER)),
    info(515, "gpu_chassis_slot", "Chassis slot of the tray", nvml="nvmlDeviceGetPlatformInfo",
         smi="platform.slot_number", absent=(NO_RACK, OLD_DRIVER)),
    info(516, "gpu_tray_index", "Index of the tray among the compute trays of the chassis",
         nvml="nvmlDeviceGetPlatformInfo", smi="platform.tray_index", absent=(NO_RACK, OLD_DRIVER)),
    info(517, "gpu_host_id", "Node in the tray", nvml="nvmlDeviceGetPlatformInfo", smi="platform.host_id",
         absent=(NO_RACK, OLD_DRIVER)),
    info(518, "gpu_platform_module_id", "Module in the node", nvml="nvmlDeviceGetPlatformInfo",
         smi="platform.module_id", absent=(NO_RACK, OLD_DRIVER)),
    info(519, "gpu_fabric_guid", "GUID of the GPU in the NVLink fabric", nvml="nvmlDeviceGetPlatformInfo",
         smi="platform.gpu_fabric_guid", absent=(NO_RACK, OLD_DRIVER)),
)
# fmt: on
