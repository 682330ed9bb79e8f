"""A process on a device."""

import msgspec

from gpufleet.model.absence import Absent


class Process(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One process that uses a view.

    Attributes:
        pid: process id as the driver tells it; it means something in the agent's PID namespace only if the agent sees
            all of the machine's processes.
        kinds: what it holds: `compute`, `graphics`, `mps`.
        start_time: kernel start time in clock ticks since boot, which names the process together with its id; None
            where the kernel shows no such process.
        values: reading to value or absence: `memory_bytes` of the device that it holds, and its shares of the device's
            time, `sm_utilization_ratio`, `memory_activity_ratio`, `encoder_utilization_ratio`,
            `decoder_utilization_ratio`.
    """

    pid: int
    kinds: tuple[str, ...]
    start_time: int | None
    values: dict[str, int | float | Absent]
