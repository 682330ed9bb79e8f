"""The machine's clocks compared with that of the probing process, and the latency of the channel.

Boot and readiness times are durations by the machine's own monotonic clock. The facts here place the start of its
kernel on the clock of the probing process. The uncertainty is half the duration of the request plus the resolution of
the file.
"""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import ChannelError, WireError
from gpufleet.model.time import NANOS
from gpufleet.ports.channel import FetchPlan, Files
from gpufleet.ports.clock import Clock
from gpufleet.probe.facts import FactList
from gpufleet.probe.measurements import MeasurementKind, MeasurementList
from gpufleet.probe.records import Better, MeasuredUnit
from gpufleet.readers.host.parse.storage import is_of_lxcfs, parse_mountinfo
from gpufleet.readers.host.parse.text import count, decode, number
from gpufleet.readers.host.source import FetchedFiles

UPTIME, STAT, MOUNTINFO = "/proc/uptime", "/proc/stat", "/proc/self/mountinfo"
UPTIME_RESOLUTION_SECONDS = 0.01
BTIME_RESOLUTION_SECONDS = 1.0
"""Resolution of the wall time at boot, which the kernel cuts off to seconds."""

REQUESTS = 3
"""Requests of the probe. The one with the shortest duration places the clocks."""

NAMES = (
    "clock_boot_seconds",
    "clock_boot_uncertainty_seconds",
    "clock_offset_seconds",
    "clock_offset_uncertainty_seconds",
)

FAILED = Absent(Reason.READER_FAILED, "the channel failed")
OF_CONTAINER = Absent(Reason.NOT_REPORTED, f"lxcfs shows the uptime of the container in {UPTIME}")

LATENCY = MeasurementKind(
    name="channel_latency",
    help="duration of reading two small files over the channel; part of every other duration",
    unit=MeasuredUnit.SECONDS,
    better=Better.LOWER,
    tool="channel",
)


async def probe_clocks(files: Files, clock: Clock, facts: FactList, measurements: MeasurementList) -> None:
    """Add the facts of the clocks and the latency of the channel."""
    best: tuple[float, float, FetchedFiles] | None = None
    for _ in range(REQUESTS):
        start, at = clock.monotonic(), clock.now_ns()
        try:
            source = FetchedFiles(await files.fetch(FetchPlan(files=(UPTIME, STAT))))
        except ChannelError as error:
            measurements.add(LATENCY, Absent(Reason.READER_FAILED, str(error)))
            continue
        seconds = max(0.0, clock.monotonic() - start)
        measurements.add(LATENCY, seconds)
        if best is None or seconds < best[0]:
            best = (seconds, at / NANOS + seconds / 2, source)
    placed = FAILED if best is None else await _uptime_absence(files) or best
    if isinstance(placed, Absent):
        for name in NAMES:
            facts.add(name, placed)
        return
    _add_clocks(*placed, facts)


async def _uptime_absence(files: Files) -> Absent | None:
    """Return why the uptime is not that of the kernel, or None."""
    try:
        source = FetchedFiles(await files.fetch(FetchPlan(files=(MOUNTINFO,))))
    except ChannelError as error:
        return Absent(Reason.READER_FAILED, str(error))
    return OF_CONTAINER if uptime_is_of_container(source) else None


def uptime_is_of_container(source: FetchedFiles) -> bool:
    """Return whether lxcfs replaces the uptime of the kernel. `source` has the list of mounts."""
    mounts = source.take(MOUNTINFO, parse_mountinfo)
    return not isinstance(mounts, Absent) and is_of_lxcfs(mounts, UPTIME)


def _add_clocks(seconds: float, middle: float, source: FetchedFiles, facts: FactList) -> None:
    uptime = source.take(UPTIME, lambda content, where: number(decode(content).partition(" ")[0], where))
    boot = uptime if isinstance(uptime, Absent) else middle - uptime
    uncertainty = seconds / 2 + UPTIME_RESOLUTION_SECONDS
    facts.add("clock_boot_seconds", boot, UPTIME)
    facts.add("clock_boot_uncertainty_seconds", boot if isinstance(boot, Absent) else uncertainty, UPTIME)
    btime = source.take(STAT, _boot_time)
    offset = next((one for one in (boot, btime) if isinstance(one, Absent)), None)
    if offset is not None:
        facts.add("clock_offset_seconds", offset, STAT)
        facts.add("clock_offset_uncertainty_seconds", offset, STAT)
        return
    assert not isinstance(boot, Absent)
    assert not isinstance(btime, Absent)
    half = BTIME_RESOLUTION_SECONDS / 2
    facts.add("clock_offset_seconds", btime + half - boot, STAT)
    facts.add("clock_offset_uncertainty_seconds", uncertainty + half, STAT)


def _boot_time(content: bytes, where: str) -> int:
    for row in decode(content).splitlines():
        name, _, text = row.partition(" ")
        if name == "btime":
            return count(text, where)
    raise WireError(where, "btime is missing")
