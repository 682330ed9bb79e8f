"""Files of /proc that lxcfs or gVisor shows in a container in place of the kernel's. Pure."""

from collections.abc import Iterable

from gpufleet.model.absence import Absent, Reason

FIXED_ZERO = Absent(Reason.NOT_REPORTED, "lxcfs or gVisor shows a fixed 0 for values that it does not have")


def has_slabs(slabs: float | None) -> bool:
    """Return whether the kernel wrote /proc/meminfo, by its size of slabs, which a kernel always has.

    lxcfs writes 0. gVisor leaves the field out: None.
    """
    return bool(slabs)


def has_ticks(times: Iterable[Iterable[int]]) -> bool:
    """Return whether the times of all processors in /proc/stat are counted. gVisor writes 0 even for idle time."""
    return any(ticks for core in times for ticks in core)


def has_threads(runnable_of_all: str) -> bool:
    """Return whether the load in /proc/loadavg is counted, by its number of all threads. gVisor writes `0/0`."""
    return runnable_of_all != "0/0"
