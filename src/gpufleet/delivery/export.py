"""Export of snapshots to another system at a fixed interval, and the agent's own counters."""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gpufleet.delivery.export_queue import ExportQueue, ExportQueueStats, ExportRequest
from gpufleet.model.event import Event
from gpufleet.model.snapshot import Snapshot
from gpufleet.runtime import run_cooperatively


class LaneStats(msgspec.Struct):
    """Passes of one lane of one reader since the agent started."""

    passes: int = 0
    failures: int = 0


class SendStats(msgspec.Struct):
    """Counters of sending to the hub since the agent started.

    Attributes:
        batches: batches created.
        lost: batches that could not be created, or that neither the disk nor memory had room for.
        acknowledged: batches acknowledged by the hub.
        refused: batches permanently rejected by the hub and set aside.
        failures: posts to be retried.
        renewals: epochs renewed because another machine uses the same epoch.
        last_success: nanoseconds since 1970 of the newest acknowledgement, or None.
        last_error: message of the newest failure; empty after a success.
    """

    batches: int = 0
    lost: int = 0
    acknowledged: int = 0
    refused: int = 0
    failures: int = 0
    renewals: int = 0
    last_success: int | None = None
    last_error: str = ""


class QueueStats(msgspec.Struct):
    """Current backlog of the agent.

    Attributes:
        records, bytes: queued on disk and in memory; None while the spool cannot be opened.
        dropped: records dropped by the spool since its creation, for lack of room or for their age; None likewise.
        in_memory: records held in memory only, because the disk refused them.
    """

    records: int | None = 0
    bytes: int | None = 0
    dropped: int | None = 0
    in_memory: int = 0


class AgentStats(msgspec.Struct):
    """Counters of the agent itself.

    Attributes:
        started_at: nanoseconds since 1970.
        lanes: passes by reader and lane.
        send, queue: None if no hub is configured.
        exports: export queues by name.
    """

    started_at: int
    lanes: dict[tuple[str, str], LaneStats]
    send: SendStats | None = None
    queue: QueueStats | None = None
    exports: dict[str, ExportQueueStats] = {}


log = logging.getLogger(__name__)


class Draft(NamedTuple):
    """A request before encoding: the number of its points or records, and a function that returns its body."""

    points: int
    encode: Callable[[], bytes]


class ExportSource(Protocol):
    """Collects snapshots and events and turns them into requests."""

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Collect the new readings of a snapshot, in small steps."""
        ...

    def add_events(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Collect events; `snapshot` is the newest one before them."""
        ...

    def take(self) -> Draft | None:
        """Return everything collected so far as one request, or None. Later calls do not change the returned draft."""
        ...


class Export:
    """Periodic export from one source to one queue."""

    def __init__(self, source: ExportSource, queue: ExportQueue, *, interval_seconds: float) -> None:
        """Connect a source to a queue; `interval_seconds` is the time between requests."""
        self._source = source
        self._queue = queue
        self._interval = interval_seconds
        self._draft: Draft | None = None
        self._defects: dict[str, str] = {}  # current defects by step: collecting or encoding

    @property
    def name(self) -> str:
        """Name in metrics and capabilities."""
        return self._queue.name

    @property
    def stats(self) -> ExportQueueStats:
        """Counters of the queue."""
        return self._queue.stats

    @property
    def capability(self) -> str:
        """`available`, or `failing:` with the reason."""
        error = next(iter(self._defects.values()), self.stats.last_error)
        return f"failing: {error}" if error else "available"

    async def offer(self, snapshot: Snapshot, stats: AgentStats, events: Sequence[Event] = ()) -> None:
        """Collect a snapshot and events. A defect affects this export only."""
        try:
            if events:
                self._source.add_events(snapshot, events)
            await run_cooperatively(self._source.offer(snapshot, stats))
        except Exception as error:  # noqa: BLE001 - a defect of one export must not end the agent's shared round
            self._record_defect("collecting", error)
        else:
            self._defects.pop("collecting", None)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(), name=f"export {self.name}")
            tasks.create_task(self._encode_periodically(), name=f"encoding for {self.name}")

    async def flush(self) -> None:
        """Send the remaining data once."""
        await self._encode()
        await self._queue.flush()

    async def _encode_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._encode()

    async def _encode(self) -> None:
        """Encode and queue the collected data, in a thread because it takes tens of milliseconds.

        A draft that is interrupted by cancellation is kept for `flush`.
        """
        try:
            while (draft := self._draft or self._source.take()) is not None:
                self._draft = draft
                body = await asyncio.to_thread(draft.encode)
                self._draft = None
                self._queue.put(ExportRequest(body, draft.points))
        except Exception as error:  # noqa: BLE001 - a defect in one body is logged and must not prevent the next one
            self._draft = None
            self._record_defect("encoding", error)
        else:
            self._defects.pop("encoding", None)

    def _record_defect(self, step: str, error: Exception) -> None:
        detail = f"{type(error).__name__}: {error}"
        if detail != self._defects.get(step):
            log.error("export %s: error while %s, data is missing from the export: %s", self.name, step, detail)
        log.debug("export %s: error while %s", self.name, step, exc_info=error)
        self._defects[step] = detail
