"""OpenTelemetry's conventions for hardware (`hw.*`), as far as they have a name for what the catalogue has.

Read in open-telemetry/semantic-conventions, `model/hardware`, v1.44.0: all of it is `development` there. How this
table is used is said in `otel.py`. What they have no name for (activity of the chip's parts, clocks and why they are
held down, NVLink, remapped rows, XIDs, MIG and vGPU) goes under our own names.

Not used: `hw.gpu.memory.utilization` is the quotient of usage and limit and left unread; `hw.fan.speed_ratio` and
`hw.fan.speed` are of components of their own (`hw.type` `fan`), which our readings of a GPU's fans are not.
"""

from gpufleet.dialects.otel_row import Instrument, OtelRow

COUNTER, UP_DOWN = Instrument.COUNTER, Instrument.UP_DOWN_COUNTER


def _utilization(metric: str, task: str) -> OtelRow:
    fixed = (("hw.gpu.task", task),)
    return OtelRow(metric=metric, name="hw.gpu.utilization", unit="1", fixed=fixed, plain=task == "general")


def _io(metric: str, direction: str) -> OtelRow:
    fixed = (("network.io.direction", direction),)
    return OtelRow(metric=metric, name="hw.gpu.io", unit="By", instrument=COUNTER, fixed=fixed)


def _errors(metric: str, error: str) -> OtelRow:
    return OtelRow(metric=metric, name="hw.errors", unit="{error}", instrument=COUNTER, fixed=(("error.type", error),))


def _temperature(metric: str, where: str) -> OtelRow:
    fixed = (("hw.sensor_location", where),)
    return OtelRow(metric=metric, name="hw.temperature", unit="Cel", fixed=fixed, plain=where == "gpu")


def _limit(threshold: str, kind: str, where: str) -> OtelRow:
    return OtelRow(
        metric="gpu_temperature_threshold_celsius",
        name="hw.temperature.limit",
        unit="Cel",
        fixed=(("hw.limit_type", kind), ("hw.sensor_location", where)),
        labels=(threshold,),
    )


def _status(state: str, *ours: str) -> OtelRow:
    """A reader that cannot read says nothing of the device's status: such a state makes no point."""
    return OtelRow(
        metric="gpu_state",
        name="hw.status",
        unit="1",
        instrument=UP_DOWN,
        fixed=(("hw.state", state),),
        states=ours,
        unsaid=("unreadable",),
    )


HW: tuple[OtelRow, ...] = (
    _utilization("gpu_utilization_ratio", "general"),
    _utilization("gpu_encoder_utilization_ratio", "encoder"),
    _utilization("gpu_decoder_utilization_ratio", "decoder"),
    OtelRow(metric="gpu_memory_total_bytes", name="hw.gpu.memory.limit", unit="By", instrument=UP_DOWN),
    OtelRow(metric="gpu_memory_used_bytes", name="hw.gpu.memory.usage", unit="By", instrument=UP_DOWN),
    _io("gpu_pcie_transmit_bytes_total", "transmit"),
    _io("gpu_pcie_receive_bytes_total", "receive"),
    OtelRow(metric="gpu_power_watts", name="hw.power", unit="W"),
    OtelRow(metric="gpu_energy_joules_total", name="hw.energy", unit="J", instrument=COUNTER),
    _temperature("gpu_temperature_celsius", "gpu"),
    _temperature("gpu_memory_temperature_celsius", "memory"),
    _limit("slowdown", "throttled", "gpu"),
    _limit("shutdown", "high.critical", "gpu"),
    _limit("gpu_max", "max", "gpu"),
    _limit("memory_max", "max", "memory"),
    _errors("gpu_ecc_corrected_errors_total", "corrected"),
    _errors("gpu_ecc_uncorrected_errors_total", "uncorrected"),
    _status("ok", "ok"),
    _status("failed", "lost", "hung", "reset_required"),
)

UNREAD = {
    "hw.gpu.memory.utilization": "a quotient of usage and limit, which stand beside it",
}

TYPE, TYPE_GPU = "hw.type", "gpu"
ID, PARENT = "hw.id", "hw.parent"

TEXTS = (
    ("hw.model", "gpu_name"),
    ("hw.serial_number", "gpu_serial"),
    ("hw.driver_version", "nvidia_driver_version"),
    ("hw.firmware_version", "gpu_vbios_version"),
)
"""Attributes of a device, and the texts that they show; the driver's version is the machine's."""

VENDOR = ("hw.vendor", "NVIDIA")
