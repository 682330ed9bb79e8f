"""Hosts that a hub reads by itself: what an agent would post of them, taken in by the same way."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator

from gpufleet import __version__
from gpufleet.agent.outcome import Outcome
from gpufleet.agent.schedule import ReaderLoop
from gpufleet.codecs.batch import encode
from gpufleet.config.hub import HubConfig
from gpufleet.hub.ingest import Ingest
from gpufleet.model.batch import Batch, MachineReport
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import GpufleetError
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.ports import Clock, Reader

log = logging.getLogger(__name__)

INTERVALS = {Lane.STATIC: 600.0, Lane.SLOW: 60.0, Lane.FAST: 10.0, Lane.EVENT: 10.0}
PASS_SECONDS = 8.0
HEARTBEAT_SECONDS = 30.0


class PolledHost:
    """One host: a reader, and its batches under a sender of its own.

    Its epoch begins with the hub's process. What cannot be taken in is lost and said in the log: there is no spool
    in front of a hub that is full.
    """

    def __init__(self, cluster: str, node: str, reader: Reader, ingest: Ingest, clock: Clock) -> None:
        """Take whose host it is, what it is called, how it is read, and who takes its batches in."""
        self._cluster, self._node, self._ingest, self._clock = cluster, node, ingest, clock
        self._sender = f"{reader.name}/{node}"
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self._loop = ReaderLoop(
            reader, intervals=INTERVALS, timeout_seconds=PASS_SECONDS, clock=clock, report=self._outcomes.put_nowait
        )
        self._epoch, self._seq = secrets.token_hex(16), 0
        self._started_at = clock.now_ns()

    @property
    def sender(self) -> str:
        """Its name as a sender: how it is read, and the node."""
        return self._sender

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
                log.warning("%s: a pass was not taken in: %s", self._sender, error)
            else:
                self._seq = batch.seq

    def _batch(self, outcome: Outcome) -> Batch:
        now = self._clock.now_ns()
        samples = outcome.round.samples if outcome.round is not None else ()
        report = MachineReport(machine=Machine(name=self._node), samples=samples, readers=(outcome.status,))
        return Batch(
            cluster=self._cluster,
            sender=self._sender,
            epoch=self._epoch,
            seq=self._seq + 1,
            sent_at=now,
            heartbeat=Heartbeat(interval_seconds=HEARTBEAT_SECONDS, version=__version__, started_at=self._started_at),
            reports=(report,),
        )


@contextlib.asynccontextmanager
async def polling(config: HubConfig, ingest: Ingest, clock: Clock) -> AsyncIterator[None]:
    """Read the hosts that the configuration names while the context is open.

    Raises:
        ConfigError: if the token or the authorities of one cannot be read, or its address is none.
    """
    tasks = [
        asyncio.create_task(polled.run(), name=f"polled {polled.sender}")
        for polled in _polled_hosts(config, ingest, clock)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _polled_hosts(config: HubConfig, ingest: Ingest, clock: Clock) -> list[PolledHost]:
    hosts: list[PolledHost] = []
    # The HTTP clients of these readers are only loaded where they read.
    if config.netdata:
        from gpufleet.readers.netdata.reader import NetdataReader

        hosts += [
            PolledHost(host.cluster, host.node, NetdataReader(host.url, clock), ingest, clock)
            for host in config.netdata
        ]
    if config.exporter:
        from gpufleet.wiring.exporters import exporter_reader

        for target in config.exporter:
            reader = exporter_reader(target, clock, f"exporter {target.node}/{target.name}")
            hosts.append(PolledHost(target.cluster, target.node, reader, ingest, clock))
    return hosts
