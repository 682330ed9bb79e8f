"""/proc/stat, /proc/loadavg and /proc/cpuinfo.

/proc/meminfo and /proc/pressure.
"""

import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import count, decode, number, shown

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Columns of a `cpu` line that add up to its time. The two after them, guest and guest_nice, are within
user and nice already (proc(5)), and would count twice."""

_IDLE = (MODES.index("idle"), MODES.index("iowait"))
_CORE = re.compile(r"cpu([0-9]{1,5})", re.ASCII)


class ProcessorTimes(msgspec.Struct, frozen=True):
    """Ticks since boot.

    Attributes:
        cores: number of the core to ticks in the order of `MODES`; old kernels give fewer.
        boot_time: seconds since 1970 when the kernel booted, or None where the file does not tell.
    """

    cores: dict[str, tuple[int, ...]]
    boot_time: int | None


def parse_stat(content: bytes, where: str) -> ProcessorTimes:
    """Read /proc/stat. Cores that are offline are not in it.

    Raises:
        WireError: if a line is malformed or no core is there.
    """
    cores: dict[str, tuple[int, ...]] = {}
    boot_time: int | None = None
    for row in decode(content).splitlines():
        name, _, rest = row.partition(" ")
        core = _CORE.fullmatch(name)
        if core is not None:
            ticks = tuple(count(token, where) for token in rest.split()[: len(MODES)])
            if len(ticks) < 4:
                raise WireError(where, f"{name} has {len(ticks)} columns, at least 4 belong there")
            cores[core[1]] = ticks
        elif name == "btime":
            boot_time = count(rest, where)
    if not cores:
        raise WireError(where, "no processor in it")
    return ProcessorTimes(cores, boot_time)


def utilization(before: ProcessorTimes, now: ProcessorTimes) -> float | None:
    """Return the share of time not idle between two readings, over the cores that both have.

    Waiting for a disk is idle. Time stolen by a hypervisor is not: the machine wanted to run. A mode that
    went back (iowait does, by the kernel's own word) counts as not moved; a core whose total went back
    began again (it was offline in between) and is left out.

    Returns:
        0 to 1, or None if no time passed on any core.
    """
    busy = total = 0
    for core, ticks in now.cores.items():
        earlier = before.cores.get(core)
        if earlier is None or len(earlier) != len(ticks) or sum(ticks) < sum(earlier):
            continue
        moved = [max(0, new - old) for new, old in zip(ticks, earlier, strict=True)]
        total += sum(moved)
        busy += sum(ticks for mode, ticks in enumerate(moved) if mode not in _IDLE)
    return busy / total if total else None


def parse_loadavg(content: bytes, where: str) -> tuple[float, float, float]:
    """Read the averages over 1, 5 and 15 minutes.

    Raises:
        WireError: if the line is malformed.
    """
    columns = decode(content).split()
    if len(columns) < 3:
        raise WireError(where, f"{len(columns)} columns, at least 3 belong there")
    return number(columns[0], where), number(columns[1], where), number(columns[2], where)


def parse_cpuinfo(content: bytes) -> dict[str, str]:
    """Read the first processor's fields (and, on ARM and POWER, those after the last one) by name."""
    fields: dict[str, str] = {}
    for row in decode(content).splitlines():
        name, colon, value = row.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def cpu_model(fields: dict[str, str], where: str) -> str:
    """Name the processor's model; ARM gives numbers instead of a name.

    Raises:
        WireError: if nothing names it.
    """
    for name in ("model name", "cpu", "cpu model"):
        if fields.get(name):
            return shown(fields[name])
    if "CPU implementer" in fields and "CPU part" in fields:
        return shown(f"ARM implementer {fields['CPU implementer']} part {fields['CPU part']}")
    raise WireError(where, "names no processor model")


WINDOWS = {"avg10": "10s", "avg60": "60s", "avg300": "300s"}
"""The kernel's name of an averaging window, to the label's."""

_FIELD = re.compile(r"([A-Za-z0-9_()]{1,40}):\s+([0-9]{1,20})( kB)?\s*", re.ASCII)


def parse_meminfo(content: bytes, where: str) -> dict[str, int]:
    """Read the sizes of /proc/meminfo, in bytes; its `kB` are 1024 bytes. Counts of pages are left out.

    Raises:
        WireError: if a line is malformed or nothing is there.
    """
    sizes: dict[str, int] = {}
    for row in decode(content).splitlines():
        field = _FIELD.fullmatch(row)
        if field is None:
            raise WireError(where, f"{row[:60]!r} is not a field")
        if field[3]:
            sizes[field[1]] = count(str(count(field[2], where) * 1024), where)
    if not sizes:
        raise WireError(where, "no sizes in it")
    return sizes


class Pressure:
    """How long tasks waited, by share (`some`, `full`)."""

    __slots__ = ("ratios", "seconds")

    def __init__(self) -> None:
        self.ratios: dict[tuple[str, str], float] = {}
        self.seconds: dict[str, float] = {}


def parse_pressure(content: bytes, where: str) -> Pressure:
    """Read one file of /proc/pressure: averages become ratios, microseconds become seconds.

    Raises:
        WireError: if a line is malformed or nothing is there.
    """
    pressure = Pressure()
    for row in decode(content).splitlines():
        share, *columns = row.split() or [""]
        if share not in ("some", "full"):
            raise WireError(where, f"{share[:40]!r} is neither some nor full")
        fields = dict(column.partition("=")[::2] for column in columns)
        missing = [name for name in (*WINDOWS, "total") if name not in fields]
        if missing:
            raise WireError(where, f"{share} lacks {missing[0]}")
        for name, window in WINDOWS.items():
            percent = number(fields[name], where)
            if percent > 100:
                raise WireError(where, f"{share} {name} is {percent} %")
            pressure.ratios[share, window] = percent / 100
        pressure.seconds[share] = count(fields["total"], where) / 1_000_000
    if not pressure.seconds:
        raise WireError(where, "empty")
    return pressure
