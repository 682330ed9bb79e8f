"""Parsers of /proc/stat, /proc/loadavg, /proc/cpuinfo, /proc/meminfo and /proc/pressure."""

import re

import msgspec

from gpufleet.fleet.proc_files import has_threads
from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import count, decode, number, printable

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Columns of a `cpu` line that add up to its time. The next two, guest and guest_nice, are already contained in user
and nice (proc(5))."""

_IDLE = (MODES.index("idle"), MODES.index("iowait"))
_CORE = re.compile(r"cpu([0-9]{1,5})", re.ASCII)


class ProcessorTimes(msgspec.Struct, frozen=True):
    """Processor times, in ticks since boot.

    Attributes:
        cores: ticks of each core in the order of `MODES`; old kernels have fewer columns.
        boot_time: boot time of the kernel in seconds since 1970, or None if the file lacks it.
    """

    cores: dict[str, tuple[int, ...]]
    boot_time: int | None


def parse_stat(content: bytes, where: str) -> ProcessorTimes:
    """Parse /proc/stat, which has online cores only.

    Raises:
        WireError: if a line is malformed or there is no core.
    """
    cores: dict[str, tuple[int, ...]] = {}
    boot_time: int | None = None
    for row in decode(content).splitlines():
        name, _, rest = row.partition(" ")
        core = _CORE.fullmatch(name)
        if core is not None:
            ticks = tuple(count(token, where) for token in rest.split()[: len(MODES)])
            if len(ticks) < 4:
                raise WireError(where, f"{name} has {len(ticks)} columns, at least 4 are expected")
            cores[core[1]] = ticks
        elif name == "btime":
            boot_time = count(rest, where)
    if not cores:
        raise WireError(where, "no cpu line")
    return ProcessorTimes(cores, boot_time)


def utilization(before: ProcessorTimes, now: ProcessorTimes) -> float | None:
    """Return the share of non-idle time between two readings, over the cores in both.

    Waiting for I/O is idle time; time stolen by a hypervisor is not. A mode that decreased counts as unchanged: iowait
    can decrease, by the kernel's documentation. A core whose total decreased was offline in between and is left out.

    Returns:
        0 to 1, or None if no time passed on any core.
    """
    busy = total = 0
    for core, ticks in now.cores.items():
        earlier = before.cores.get(core)
        if earlier is None or len(earlier) != len(ticks) or sum(ticks) < sum(earlier):
            continue
        deltas = [max(0, new - old) for new, old in zip(ticks, earlier, strict=True)]
        total += sum(deltas)
        busy += sum(ticks for mode, ticks in enumerate(deltas) if mode not in _IDLE)
    return busy / total if total else None


def parse_loadavg(content: bytes, where: str) -> tuple[float, float, float] | None:
    """Parse the load averages over 1, 5 and 15 minutes. None if they are not counted.

    Raises:
        WireError: if the line is malformed.
    """
    columns = decode(content).split()
    if len(columns) < 3:
        raise WireError(where, f"{len(columns)} columns, at least 3 are expected")
    if len(columns) > 3 and not has_threads(columns[3]):
        return None
    return number(columns[0], where), number(columns[1], where), number(columns[2], where)


def parse_cpuinfo(content: bytes) -> dict[str, str]:
    """Parse the fields of the first processor, and on ARM and POWER also the fields after the last one."""
    fields: dict[str, str] = {}
    for row in decode(content).splitlines():
        name, colon, value = row.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def cpu_model(fields: dict[str, str], where: str) -> str | None:
    """Return the processor's model, None if the kernel does not know it; ARM has numbers instead of a name.

    Raises:
        WireError: if there is no model.
    """
    for name in ("model name", "cpu", "cpu model"):
        if fields.get(name):
            return None if fields[name] == UNKNOWN_MODEL else printable(fields[name])
    if "CPU implementer" in fields and "CPU part" in fields:
        return printable(f"ARM implementer {fields['CPU implementer']} part {fields['CPU part']}")
    raise WireError(where, "no processor model")


UNKNOWN_MODEL = "unknown"
"""Model of a processor that has none, and of every processor in gVisor."""

WINDOWS = {"avg10": "10s", "avg60": "60s", "avg300": "300s"}
"""Averaging window of the kernel to its label."""

_FIELD = re.compile(r"([A-Za-z0-9_()]{1,40}):\s+([0-9]{1,20})( kB)?\s*", re.ASCII)


def parse_meminfo(content: bytes, where: str) -> dict[str, int]:
    """Parse the sizes of /proc/meminfo, in bytes; a `kB` is 1024 bytes. Page counts are left out.

    Raises:
        WireError: if a line is malformed or there is no size.
    """
    sizes: dict[str, int] = {}
    for row in decode(content).splitlines():
        field = _FIELD.fullmatch(row)
        if field is None:
            raise WireError(where, f"{row[:60]!r} is not a field")
        if field[3]:
            sizes[field[1]] = count(str(count(field[2], where) * 1024), where)
    if not sizes:
        raise WireError(where, "no sizes")
    return sizes


class Pressure:
    """Pressure stall information: ratios by share (`some`, `full`) and window, seconds by share."""

    __slots__ = ("ratios", "seconds")

    def __init__(self) -> None:
        self.ratios: dict[tuple[str, str], float] = {}
        self.seconds: dict[str, float] = {}


def parse_pressure(content: bytes, where: str) -> Pressure:
    """Parse one file of /proc/pressure: averages become ratios, microseconds become seconds.

    Raises:
        WireError: if a line is malformed or the file is empty.
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
