"""A process on a device."""

import msgspec

from gpufleet.model.absence import Absent


class Process(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process that uses a view.

    Attributes:
        view: key of the view.
        pid: process id in the agent's PID namespace.
        start_time: kernel start time in clock ticks since boot: with the pid it names the process.
        memory_bytes: device memory it holds.
        holder: id of the holder it belongs to, if known.
    """

    view: str
    pid: int
    start_time: int | None = None
    memory_bytes: int | Absent
    holder: str | None = None
