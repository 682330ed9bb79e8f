"""Heat, power, energy and fans."""

from gpufleet.model.catalogue.gpu_board import TEMPERATURE_THRESHOLDS
from gpufleet.readers.nvml.calls.power import FAN_RPM, FAN_SPEED, THRESHOLD
from gpufleet.readers.nvml.mapping.row import Row, field_row, field_table
from gpufleet.readers.nvml.mapping.units import degrees, milli, percent, same, sensor_degrees

_MARGINS = ("shutdown", "slowdown", "memory_max", "gpu_max")

ROWS = (
    Row("gpu_temperature_celsius", "temperature", degrees),
    field_row("gpu_memory_temperature_celsius", "memory temperature", sensor_degrees),
    Row("gpu_temperature_margin_celsius", "nvmlDeviceGetMarginTemperature", degrees),
    Row("gpu_power_watts", "nvmlDeviceGetPowerUsage", milli),
    field_row("gpu_power_instant_watts", "power, instant", milli),
    Row("gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", milli),
    Row("gpu_power_default_limit_watts", "nvmlDeviceGetPowerManagementDefaultLimit", milli),
    Row("gpu_energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", milli, bits=64),
    Row("gpu_fan_speed_ratio", "nvmlDeviceGetNumFans", percent, every=True, inner=FAN_SPEED),
    Row("gpu_temperature_threshold_celsius", THRESHOLD, degrees, every=True, names=TEMPERATURE_THRESHOLDS, sparse=True),
    field_table("gpu_temperature_margin_threshold_celsius", "margin threshold", _MARGINS, degrees, bits=32),
    field_row("gpu_power_average_watts", "power, average", milli),
    field_row("gpu_power_requested_limit_watts", "power limit, requested", milli),
    field_row("gpu_power_limit_min_watts", "power limit, lowest", milli),
    field_row("gpu_power_limit_max_watts", "power limit, highest", milli),
    field_row("gpu_module_power_watts", "power, module, instant", milli),
    field_row("gpu_module_power_average_watts", "power, module, average", milli),
    field_row("gpu_module_power_limit_watts", "power limit, module", milli),
    Row("gpu_fan_speed_rpm", "fan turns", same, every=True, inner=FAN_RPM),
)
