"""A process on a device."""

from collections.abc import Mapping

import msgspec

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.metric import ValueType


class ProcessReading(msgspec.Struct, frozen=True):
    """What can be measured of a process.

    Attributes:
        type, unit, low, high: of its values, as in the catalogue's rows.
        help: one line for people.
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
"""Name to what it is; the same names wherever a process is told of."""

MAX_TOLD = 256
"""Processes of one device that leave the agent: those that hold the most of its memory."""


class Process(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One process that uses a view.

    Attributes:
        pid: process id as the driver tells it; it means something in the agent's PID namespace only if the agent sees
            all of the machine's processes.
        kinds: what it holds: `compute`, `graphics`, `mps`.
        start_time: kernel start time in clock ticks since boot, which names the process together with its id; None
            where the kernel shows no such process.
        values: name in `PROCESS_READINGS` to value or absence.
        name: the kernel's short name of it, empty unless the agent is told to read names.
    """

    pid: int
    kinds: tuple[str, ...]
    start_time: int | None
    values: dict[str, int | float | Absent]
    name: str = ""


def most_memory_first(process: Process) -> tuple[float, int]:
    """Sort key: who holds the most memory comes first; where that is not known, at the end, by process id."""
    held = process.values.get("memory_bytes")
    return (1 if held is None or isinstance(held, Absent) else -held, process.pid)
