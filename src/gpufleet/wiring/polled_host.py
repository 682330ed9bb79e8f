"""Hosts that a hub reads by itself: what an agent would post of them, taken in by the same way."""

import asyncio
import logging
import secrets

from gpufleet import __version__
from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import Outcome
from gpufleet.codecs.batch import encode
from gpufleet.hub.imports.federation import offset
from gpufleet.hub.imports.scrape_status import Standing
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import GpufleetError
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader

log = logging.getLogger(__name__)

INTERVALS = {Lane.STATIC: 600.0, Lane.SLOW: 60.0, Lane.FAST: 10.0, Lane.EVENT: 10.0}
PASS_SECONDS = 8.0
HEARTBEAT_SECONDS = 30.0


class PolledHost:
    """One host: a reader, and its batches under a sender of its own.

    Its epoch begins with the hub's process. What cannot be taken in is lost, counted, and said in the log: there is no
    spool in front of a hub that is full. A host that does not answer is as silent as an agent that does not speak:
    batches about it say when it last did.
    """

    def __init__(
        self,
        cluster: str,
        node: str,
        reader: Reader,
        ingest: Ingest,
        clock: Clock,
        standing: Standing,
        answered_at: int,
    ) -> None:
        """Prepare it.

        Args:
            cluster, node: whose it is, and what it is called.
            reader: how it is read.
            ingest: takes its batches in.
            clock: the clocks.
            standing: learns how it goes.
            answered_at: nanoseconds since 1970 when it last answered an earlier process; 0 for never.
        """
        self._cluster, self._node, self._ingest, self._clock = cluster, node, ingest, clock
        self._sender = sender_of(reader, node)
        self._standing = standing
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self._loop = ReaderLoop(
            reader, intervals=INTERVALS, timeout_seconds=PASS_SECONDS, clock=clock, report=self._outcomes.put_nowait
        )
        self._epoch, self._seq = secrets.token_hex(16), 0
        self._started_at = clock.now_ns()
        self._answered_at = answered_at
        self._warned = ""

    @property
    def answered_at(self) -> int:
        """When it last answered, in nanoseconds since 1970; 0 for never."""
        return self._answered_at

    async def run(self) -> None:
        """Read and take in until cancelled."""
        await asyncio.sleep(offset(f"{self._cluster}/{self._sender}", INTERVALS[Lane.FAST]))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._loop.run())
            tasks.create_task(self._take_in())

    async def _take_in(self) -> None:
        while True:
            outcome = await self._outcomes.get()
            if outcome.failure is None:
                self._standing.answered()
                self._answered_at = self._clock.now_ns()
            else:
                self._standing.failed(outcome.status.last_error)  # the reader's loop has said it
            batch = self._batch(outcome)
            try:
                await self._ingest.take(encode(batch), self._clock.now_ns())
            except Exception as error:  # noqa: BLE001 - the one catch point: a pass that is not taken in costs itself
                self._standing.lost += 1
                words = str(error) if isinstance(error, GpufleetError) else f"{type(error).__name__}: {error}"
                if words != self._warned:
                    log.warning("%s: a pass was not taken in: %s", self._sender, words)
                self._warned = words
            else:
                self._seq, self._warned = batch.seq, ""

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
            heartbeat=Heartbeat(
                interval_seconds=HEARTBEAT_SECONDS,
                version=__version__,
                started_at=self._started_at,
                answered_at=self._answered_at,
            ),
            # A name in a list is no machine yet: something has to have answered under it.
            reports=(report,) if self._answered_at else (),
        )


def sender_of(reader: Reader, node: str) -> str:
    """Return a host's name as a sender: how it is read, and the node."""
    return f"{reader.name}/{node}"
