"""The probe as a reader: its facts and times as a sample of the machine.

The probe runs after the start, after a boot of the machine, each day, and on demand. In between, passes return the same
sample with its own time of measurement. While a boot may still go on, each pass probes again.
"""

import asyncio
from collections.abc import Callable, Iterable

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, ValueType
from gpufleet.model.catalogue.probe import PROBE_READER
from gpufleet.model.errors import ChannelError, ReaderError, WireError
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.model.text import bounded
from gpufleet.ports.channel import Exec, FetchPlan, Files
from gpufleet.ports.clock import Clock
from gpufleet.probe.facts import FactList
from gpufleet.probe.machine import probe_commands, probe_machine
from gpufleet.probe.measurements import MeasurementList
from gpufleet.probe.records import Fact, Measurement
from gpufleet.probe.runner import CommandRunner
from gpufleet.readers.host.parse.identity import parse_boot_id
from gpufleet.readers.host.parse.text import decode, number
from gpufleet.readers.host.source import FetchedFiles

BOOT_ID, UPTIME = "/proc/sys/kernel/random/boot_id", "/proc/uptime"

REPEAT_SECONDS = 86_400.0
"""Age at which the probe runs again: huge pages and versions can change without a boot."""

BOOT_SECONDS = 600.0
"""Uptime up to which services may still start. Until then each pass probes again."""

METRICS = tuple(metric for metric in CATALOGUE.values() if metric.name.startswith("probe_"))

COLD = "probe_nvidia_smi_cold_seconds"


class ProbeReader:
    """Runs the probe when it is due.

    Args:
        files: channel to the machine's files.
        commands: runs the fixed commands of the probe there.
        clock: of the agent.
        requested: returns a number that changes with each request of an operator.
        is_released: returns whether an operator had the GPUs released: no probe is then started, because nvidia-smi
            opens them for the time of a call.
        waits: whether the first pass waits for the probe. An agent does not: it would not be ready before that.
    """

    def __init__(
        self,
        files: Files,
        commands: Exec,
        clock: Clock,
        *,
        requested: Callable[[], int] = lambda: 0,
        is_released: Callable[[], bool] = lambda: False,
        waits: bool = False,
    ) -> None:
        self._files, self._commands, self._clock = files, commands, clock
        self._requested, self._is_released, self._waits = requested, is_released, waits
        self._task: asyncio.Task[Sample] | None = None
        self._sample: Sample | None = None
        self._boot: str | None = None
        self._request = 0
        self._probed = 0.0
        self._was_booting = False

    @property
    def name(self) -> str:
        """Return `probe`."""
        return PROBE_READER

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return static."""
        return (Lane.STATIC,)

    async def read(self, lane: Lane) -> Round:
        """Return the newest probe, and run it before if it is due.

        Raises:
            ReaderError: if the machine's files cannot be read.
        """
        if self._task is None and not self._is_released():
            await self._start_if_due()
        if self._task is not None and (self._waits or self._sample is not None or self._task.done()):
            try:
                self._sample = await self._task
            finally:
                self._task = None
        self._waits = True  # from the second pass on
        return Round(samples=() if self._sample is None else (self._sample,))

    async def close(self) -> None:
        """End a running probe, and drop the newest one."""
        task, self._task, self._sample = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _start_if_due(self) -> None:
        try:
            source = FetchedFiles(await self._files.fetch(FetchPlan(files=(BOOT_ID, UPTIME))))
        except ChannelError as error:
            raise ReaderError(Reason.READER_FAILED, str(error)) from error
        boot = source.take(BOOT_ID, parse_boot_id)
        uptime = source.take(UPTIME, _uptime)
        now, request = self._clock.monotonic(), self._requested()
        boot_id = None if isinstance(boot, Absent) else boot
        is_same_boot = self._sample is not None and boot_id == self._boot
        is_due = not is_same_boot or self._was_booting or request != self._request
        if not is_due and now - self._probed < REPEAT_SECONDS:
            return
        self._boot, self._request, self._probed = boot_id, request, now
        self._was_booting = not isinstance(uptime, Absent) and uptime < BOOT_SECONDS
        cold = self._sample.values[COLD] if is_same_boot and self._sample is not None else None
        self._task = asyncio.create_task(self._probe(cold), name="performance probe")

    async def _probe(self, cold: Value | Absent | None) -> Sample:
        """Run the probe. `cold` is the first call of nvidia-smi of this boot, if an earlier probe made it."""
        facts, measurements = FactList(), MeasurementList()
        await probe_machine(self._files, self._clock, facts, measurements)
        await probe_commands(CommandRunner(self._commands, self._clock), 1, facts, measurements)
        values = probe_values(facts.facts, measurements.measurements())
        if cold is not None and not isinstance(cold, Absent):
            values[COLD] = cold
        return Sample(view=None, reader=self.name, lane=Lane.STATIC, measured_at=self._clock.now_ns(), values=values)


def probe_values(facts: Iterable[Fact], measurements: Iterable[Measurement]) -> dict[str, Value | Absent]:
    """Return the value or absence of each metric of the probe. Of repeated measurements it is the median."""
    found: dict[str, Value | Absent] = {}
    for fact in facts:
        if not fact.subject:
            known = Absent(fact.absent, fact.detail) if fact.absent is not None else fact.value
            found[f"probe_{fact.name.removeprefix('host_')}"] = Absent(Reason.NO_DATA) if known is None else known
    for one in measurements:
        absent = Absent(one.absent or Reason.NO_DATA, one.detail)
        found[f"probe_{one.name}_seconds"] = absent if one.statistics is None else one.statistics.median
    values: dict[str, Value | Absent] = {}
    for metric in METRICS:
        value = found.get(metric.name, Absent(Reason.NOT_COLLECTED))
        if isinstance(value, str):
            value = bounded(value, 1024)
        elif not isinstance(value, Absent) and metric.type is ValueType.INT:
            value = int(value)
        values[metric.name] = value
    return values


def _uptime(content: bytes, where: str) -> float:
    text = decode(content).partition(" ")[0]
    if not text:
        raise WireError(where, "is empty")
    return number(text, where)
