"""Heat, power, energy and fans."""

from gpufleet.readers.nvml.calls.power import FAN_SPEED
from gpufleet.readers.nvml.mapping.row import Row, field_row
from gpufleet.readers.nvml.mapping.units import degrees, milli, percent, sensor_degrees

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
)
