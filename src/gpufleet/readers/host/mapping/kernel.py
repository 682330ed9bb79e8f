"""Mapping of processor, load, memory and pressure."""

from gpufleet.fleet.proc_files import FIXED_ZERO, has_slabs, has_ticks
from gpufleet.model.absence import Absent, Reason
from gpufleet.readers.host import plan
from gpufleet.readers.host.mapping import Readings
from gpufleet.readers.host.parse.kernel import (
    MODES,
    WINDOWS,
    ProcessorTimes,
    parse_loadavg,
    parse_meminfo,
    parse_pressure,
    parse_stat,
    utilization,
)
from gpufleet.readers.host.source import FetchedFiles

USER_HZ = 100
"""Ticks per second in /proc/stat: a constant of the Linux ABI on every architecture with NVIDIA GPUs."""

MEMORY = {
    "host_memory_total_bytes": "MemTotal",
    "host_memory_available_bytes": "MemAvailable",
    "host_memory_free_bytes": "MemFree",
    "host_memory_buffers_bytes": "Buffers",
    "host_memory_cached_bytes": "Cached",
    "host_swap_total_bytes": "SwapTotal",
    "host_swap_free_bytes": "SwapFree",
}
"""Metric to field of /proc/meminfo."""

CONTAINER_MODES = frozenset({"user", "system", "idle"})
"""Modes that lxcfs counts for a container, from the `cpuacct` controller of cgroup v1. It writes zeros for the others.
Without this controller, it shows the kernel's own counts of all modes."""

LOADS = ("host_load_1m", "host_load_5m", "host_load_15m")

SHARES = {"cpu": ("some",), "io": ("some", "full"), "memory": ("some", "full"), "irq": ("full",)}
"""Resource to its shares. `full` of cpu is left out: the kernel does not define it for a whole machine and prints zeros
for old programs (Documentation/accounting/psi.rst). `irq` exists only in kernels that account for it."""

FIRST_ROUND = Absent(Reason.NO_DATA, "utilization needs two rounds")
NO_TIME = Absent(Reason.NO_DATA, "no processor time passed since the previous round, or the counters were reset")


def map_processor(source: FetchedFiles, before: ProcessorTimes | None, into: Readings) -> ProcessorTimes | None:
    """Add times, utilization, number of processors and load; return the times for the next pass."""
    times = source.take(plan.STAT, parse_stat, required=True)
    if isinstance(times, Absent):
        into.values["host_cpu_utilization_ratio"] = times
        into.values["host_cpus"] = times
    else:
        into.values["host_cpus"] = len(times.cores)
        if not has_ticks(times.cores.values()):
            into.values["host_cpu_utilization_ratio"] = FIXED_ZERO
        elif before is None:
            into.values["host_cpu_utilization_ratio"] = FIRST_ROUND
        else:
            share = utilization(before, times)
            into.values["host_cpu_utilization_ratio"] = NO_TIME if share is None else share
        unknown = _uncounted_modes(source, times)
        for core, ticks in times.cores.items():
            for mode, spent in zip(MODES, ticks, strict=False):
                into.dim("host_cpu_seconds_total", (core, mode), FIXED_ZERO if mode in unknown else spent / USER_HZ)
    loads = source.take(plan.LOADAVG, parse_loadavg, required=True)
    for position, metric in enumerate(LOADS):
        into.values[metric] = loads if isinstance(loads, Absent) else FIXED_ZERO if loads is None else loads[position]
    return None if isinstance(times, Absent) else times


def _uncounted_modes(source: FetchedFiles, times: ProcessorTimes) -> frozenset[str]:
    """Return the modes with fixed zeros: all of gVisor, some of lxcfs if it wrote the times of a container."""
    others = frozenset(MODES) - CONTAINER_MODES
    cores = times.cores.values()
    if not has_ticks(cores):
        return frozenset(MODES)
    if any(spent for ticks in cores for mode, spent in zip(MODES, ticks, strict=False) if mode in others):
        return frozenset()
    sizes = source.take(plan.MEMINFO, parse_meminfo)
    return others if not isinstance(sizes, Absent) and not has_slabs(sizes.get("Slab")) else frozenset()


def map_boot_time(source: FetchedFiles, into: Readings) -> None:
    """Add the boot time of the kernel."""
    times = source.take(plan.STAT, parse_stat, required=True)
    if isinstance(times, Absent):
        into.values["host_boot_timestamp_seconds"] = times
    elif times.boot_time is None:
        into.values["host_boot_timestamp_seconds"] = Absent(Reason.NOT_SUPPORTED, f"{plan.STAT} has no btime")
    else:
        into.values["host_boot_timestamp_seconds"] = times.boot_time


def map_memory(source: FetchedFiles, into: Readings) -> None:
    """Add memory and swap."""
    sizes = source.take(plan.MEMINFO, parse_meminfo, required=True)
    for metric, field in MEMORY.items():
        if isinstance(sizes, Absent):
            into.values[metric] = sizes
        elif field == "Buffers" and sizes.get(field) == 0 and not has_slabs(sizes.get("Slab")):
            into.values[metric] = FIXED_ZERO
        elif field in sizes:
            into.values[metric] = sizes[field]
        else:
            into.values[metric] = Absent(Reason.NOT_SUPPORTED, f"{plan.MEMINFO} has no {field}")


def map_pressure(source: FetchedFiles, into: Readings) -> None:
    """Add pressure; a kernel without support gets absences for cpu, io and memory."""
    for resource, shares in SHARES.items():
        path = f"{plan.PRESSURE}/{resource}"
        if resource == "irq" and path not in source.fetched.files:
            continue
        pressure = source.take(path, parse_pressure)
        for share in shares:
            for window in WINDOWS.values():
                ratio = pressure if isinstance(pressure, Absent) else pressure.ratios.get((share, window))
                into.dim("host_pressure_ratio", (resource, share, window), _or_absent(ratio, path, share))
            seconds = pressure if isinstance(pressure, Absent) else pressure.seconds.get(share)
            into.dim("host_pressure_seconds_total", (resource, share), _or_absent(seconds, path, share))


def _or_absent(value: float | Absent | None, path: str, share: str) -> float | Absent:
    return Absent(Reason.NOT_SUPPORTED, f"{path} has no {share}") if value is None else value
