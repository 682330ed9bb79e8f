"""Hosts that the hub polls itself. Their data is ingested like an agent's batches."""

import asyncio
import logging
import secrets

from gpufleet import __version__
from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import Outcome
from gpufleet.codecs.batch import encode
from gpufleet.hub.imports.federation import start_offset
from gpufleet.hub.imports.scrape_status import TargetStatus
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
    """A polled host: its reader, and its batches under a sender of its own.

    Its epoch starts with the hub process. A batch that cannot be ingested is lost, counted and logged, because there is
    no spool. The batches of a host that does not answer carry the time of its last answer.
    """

    def __init__(
        self,
        cluster: str,
        node: str,
        reader: Reader,
        ingest: Ingest,
        clock: Clock,
        target_status: TargetStatus,
        answered_at: int,
    ) -> None:
        """Take the parts.

        Args:
            cluster, node: cluster and name of the host.
            reader: reads the host.
            ingest: ingests its batches.
            clock: wall and monotonic time.
            target_status: records successes and failures.
            answered_at: time of its last answer to an earlier process, nanoseconds since 1970; 0 for never.
        """
        self._cluster, self._node, self._ingest, self._clock = cluster, node, ingest, clock
        self._sender = polled_sender(reader, node)
        self._target_status = target_status
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self._loop = ReaderLoop(
            reader, intervals=INTERVALS, timeout_seconds=PASS_SECONDS, clock=clock, report=self._outcomes.put_nowait
        )
        self._epoch, self._seq = secrets.token_hex(16), 0
        self._started_at = clock.now_ns()
        self._answered_at = answered_at
        self._last_problem = ""

    @property
    def answered_at(self) -> int:
        """Time of its last answer, nanoseconds since 1970; 0 for never."""
        return self._answered_at

    async def run(self) -> None:
        """Read and ingest until cancelled."""
        await asyncio.sleep(start_offset(f"{self._cluster}/{self._sender}", INTERVALS[Lane.FAST]))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._loop.run())
            tasks.create_task(self._take_in())

    async def _take_in(self) -> None:
        while True:
            outcome = await self._outcomes.get()
            if outcome.failure is None:
                self._target_status.record_success()
                self._answered_at = self._clock.now_ns()
            else:
                self._target_status.record_failure(outcome.status.last_error)  # logged by the reader's loop
            batch = self._batch(outcome)
            try:
                await self._ingest.receive(encode(batch), self._clock.now_ns())
            except Exception as error:  # noqa: BLE001 - the one catch point: a failed pass does not stop the task
                self._target_status.lost += 1
                problem = str(error) if isinstance(error, GpufleetError) else f"{type(error).__name__}: {error}"
                if problem != self._last_problem:
                    log.warning("%s: pass not ingested: %s", self._sender, problem)
                self._last_problem = problem
            else:
                self._seq, self._last_problem = batch.seq, ""

    def _batch(self, outcome: Outcome) -> Batch:
        now = self._clock.now_ns()
        samples, events = (outcome.round.samples, outcome.round.events) if outcome.round is not None else ((), ())
        machine = Machine(name=self._node)
        report = MachineReport(machine=machine, samples=samples, events=events, readers=(outcome.status,))
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
            # A name in a list is not a machine until it has answered.
            reports=(report,) if self._answered_at else (),
        )


def polled_sender(reader: Reader, node: str) -> str:
    """Return a host's sender name: reader and node."""
    return f"{reader.name}/{node}"
