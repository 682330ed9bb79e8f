"""Processes on a device."""

from collections.abc import Mapping

import msgspec

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.metric import ValueType


class ProcessReading(msgspec.Struct, frozen=True):
    """Definition of a measured value of a process.

    Attributes:
        type, unit, low, high: as in catalogue rows.
        help: one-line description.
    """

    type: ValueType
    unit: str
    low: float | None
    high: float | None
    help: str


def _share(what: str) -> ProcessReading:
    return ProcessReading(ValueType.FLOAT, "ratio", 0, 1, f"Share of the device's {what} that is the process's.")


PROCESS_READINGS: Mapping[str, ProcessReading] = {
    "memory_bytes": ProcessReading(ValueType.INT, "bytes", 0, None, "Memory of the device that the process holds."),
    "sm_utilization_ratio": _share("multiprocessors' time"),
    "memory_activity_ratio": _share("memory's time"),
    "encoder_utilization_ratio": _share("encoders' time"),
    "decoder_utilization_ratio": _share("decoders' time"),
}
"""Definitions by name; all interfaces use the same names."""

MAX_PROCESSES = 256
"""Maximum number of processes per device that the agent reports: those with the most device memory."""


class Process(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Process on a view.

    Attributes:
        pid: process id as the driver reports it; valid in the agent's PID namespace only if the agent sees all of the
            machine's processes.
        kinds: kinds of its contexts: `compute`, `graphics`, `mps`.
        start_time: kernel start time in clock ticks since boot, which identifies the process together with its id;
            None if the kernel shows no such process.
        values: name in `PROCESS_READINGS` to value or absence.
        name: the kernel's short name, empty unless the agent is configured to read names.
    """

    pid: int
    kinds: tuple[str, ...]
    start_time: int | None
    values: dict[str, int | float | Absent]
    name: str = ""


def most_memory_first(process: Process) -> tuple[float, int]:
    """Sort key: most memory first; processes with unknown memory at the end, by process id."""
    held = process.values.get("memory_bytes")
    return (1 if held is None or isinstance(held, Absent) else -held, process.pid)
