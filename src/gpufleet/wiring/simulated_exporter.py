"""Construction of a simulated exporter: the agent's page cache and web server over a simulated node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator

from gpufleet.agent.publish.pages import PageCache, PageForm
from gpufleet.config.agent import parse_listen
from gpufleet.config.push import full_names
from gpufleet.decoding.builder import SnapshotBuilder
from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.random_values import FleetClock
from gpufleet.simulate.fleet.single_node import holders_of, node_report
from gpufleet.wiring.running import CONNECTIONS, STOP_SECONDS, RunningDaemon

CAPABILITIES = {"push": "disabled: simulated node"}


class SimulatedExporter:
    """Pages of a simulated node, which change with each collection pass.

    A page is a function of the fleet, the start and the number of the pass.

    Attributes:
        missing: readers without a first pass; always empty.
    """

    missing: tuple[str, ...] = ()

    def __init__(self, fleet: Fleet, dialect: str, start: int, interval_seconds: float) -> None:
        """Prepare the first pass.

        Args:
            fleet: of `single_node`.
            dialect: `native`, or a dialect of the agent's page, such as `dcgm`.
            start: simulated instant of the first pass, nanoseconds since 1970.
            interval_seconds: simulated and real seconds between passes.
        """
        self._fleet = fleet
        self._start = start
        self._interval_seconds = interval_seconds
        self._passes = 0
        stats = AgentStats(start, {})
        self._pages = PageCache(self._assemble, AgentPages(full_names([dialect])), lambda: stats)

    async def snapshot(self) -> Snapshot:
        """Return the readings of the newest pass."""
        return await self._pages.snapshot()

    async def page(self, form: PageForm) -> bytes:
        """Return the page of the newest pass."""
        return await self._pages.page(form)

    async def collect(self, passes: int) -> None:
        """Set the number of passes since the start, and renew the pages."""
        self._passes = passes
        self._pages.change()
        await self._pages.renew()

    async def run(self) -> None:
        """Collect at each interval until cancelled. Passes that are overdue are left out."""
        clock, never = FleetClock(self._start), asyncio.Event()
        every = int(self._interval_seconds * NANOS)
        while True:
            await clock.wait_until(self._start + (self._passes + 1) * every, never)
            await self.collect((clock.now() - self._start) // every)

    def _assemble(self) -> Generator[None, None, Snapshot]:
        at = self._start + int(self._passes * self._interval_seconds * NANOS)
        report = node_report(self._fleet, at, self._interval_seconds)
        yield
        builder = SnapshotBuilder(report.machine, at, report.events, CAPABILITIES, holders_of(report))
        builder.take(report.samples, statuses=report.readers, inventory=report.inventory)
        return builder.snapshot()


@contextlib.asynccontextmanager
async def running_exporter(exporter: SimulatedExporter, listen: str) -> AsyncIterator[RunningDaemon]:
    """Serve the pages while the context is open, with the agent's endpoints and limits.

    Args:
        exporter: source of the pages.
        listen: HOST:PORT. There is no token: the values are invented.

    Raises:
        ConfigError: if `listen` is no address.
        GpufleetError: if it cannot listen.
    """
    from gpufleet.web.agent import AgentApp
    from gpufleet.web.server import serve

    host, port = parse_listen(listen)
    async with serve(AgentApp(exporter), host, port, connections=CONNECTIONS, stop_seconds=STOP_SECONDS) as bound:
        task = asyncio.create_task(exporter.run(), name="simulated exporter")
        try:
            yield RunningDaemon(host=host, port=bound, secure=False, task=task)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
