"""Hosts that a hub reads by itself: what an agent would post of them, taken in by the same way."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence

from gpufleet import __version__
from gpufleet.agent.outcome import Outcome
from gpufleet.agent.schedule import ReaderLoop
from gpufleet.codecs.batch import encode
from gpufleet.config.hub import NetdataHost
from gpufleet.hub.ingest import Ingest
from gpufleet.model.batch import Batch, MachineReport
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import GpufleetError
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.ports import Clock, Reader

log = logging.getLogger(__name__)

INTERVALS = {Lane.STATIC: 600.0, Lane.FAST: 10.0}
PASS_SECONDS = 8.0
HEARTBEAT_SECONDS = 30.0


class PolledHost:
    """One host: its reader, and its batches under a sender of its own.

    Its epoch begins with the hub's process. What cannot be taken in is lost and said in the log: there is no spool
    in front of a hub that is full.
    """

    def __init__(self, host: NetdataHost, reader: Reader, ingest: Ingest, clock: Clock) -> None:
        self._host, self._ingest, self._clock = host, ingest, clock
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self._loop = ReaderLoop(
            reader, intervals=INTERVALS, timeout_seconds=PASS_SECONDS, clock=clock, report=self._outcomes.put_nowait
        )
        self._epoch, self._seq = secrets.token_hex(16), 0
        self._started_at = clock.now_ns()

    async def run(self) -> None:
        """Read and take in until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._loop.run())
            tasks.create_task(self._take_in())

    async def _take_in(self) -> None:
        while True:
            batch = self._batch(await self._outcomes.get())
            try:
                await self._ingest.take(encode(batch), self._clock.now_ns())
            except GpufleetError as error:  # the one catch point: a pass that is not taken in costs itself
                log.warning("Netdata of %s: a pass was not taken in: %s", self._host.node, error)
            else:
                self._seq = batch.seq

    def _batch(self, outcome: Outcome) -> Batch:
        now = self._clock.now_ns()
        samples = outcome.round.samples if outcome.round is not None else ()
        report = MachineReport(machine=Machine(name=self._host.node), samples=samples, readers=(outcome.status,))
        return Batch(
            cluster=self._host.cluster,
            sender=f"netdata/{self._host.node}",
            epoch=self._epoch,
            seq=self._seq + 1,
            sent_at=now,
            heartbeat=Heartbeat(interval_seconds=HEARTBEAT_SECONDS, version=__version__, started_at=self._started_at),
            reports=(report,),
        )


@contextlib.asynccontextmanager
async def polling(hosts: Sequence[NetdataHost], ingest: Ingest, clock: Clock) -> AsyncIterator[None]:
    """Read the hosts while the context is open."""
    tasks: list[asyncio.Task[None]] = []
    if hosts:
        from gpufleet.readers.netdata.reader import NetdataReader  # its HTTP client is only loaded where it reads

        for host in hosts:
            polled = PolledHost(host, NetdataReader(host.url, clock), ingest, clock)
            tasks.append(asyncio.create_task(polled.run(), name=f"netdata {host.node}"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
