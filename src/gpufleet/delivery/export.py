"""A way to another system: what it is told is gathered from every snapshot, and goes out once an interval.

What the agent counts about itself.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gpufleet.delivery.outlet import Outlet, OutletStats, Parcel
from gpufleet.model.event import Event
from gpufleet.model.snapshot import Snapshot
from gpufleet.runtime import in_slices


class LaneStats(msgspec.Struct):
    """Passes of one lane of one reader since the agent started."""

    passes: int = 0
    failures: int = 0


class SendStats(msgspec.Struct):
    """The way to the hub since the agent started.

    Attributes:
        batches: made.
        lost: batches that could not be made, or that the disk refused and memory had no room for.
        acknowledged: batches that the hub has taken.
        refused: batches that the hub will never take, set aside.
        failures: posts that will be made again.
        renewals: new epochs taken because another machine counts under the same one.
        last_success: nanoseconds since 1970 of the newest acknowledgement, or None.
        last_error: words of the newest failure; empty after a success.
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
    """What waits as it is now.

    Attributes:
        records, bytes: that wait, on disk and in memory.
        dropped: records that the spool dropped, since it was made, for want of room or for their age.
        in_memory: records that only memory holds, because the disk refused them.
    """

    records: int = 0
    bytes: int = 0
    dropped: int = 0
    in_memory: int = 0


class AgentStats(msgspec.Struct):
    """All of it.

    Attributes:
        started_at: nanoseconds since 1970.
        lanes: by reader and lane.
        send, queue: None when no hub is configured.
        exports: ways to other systems, by name.
    """

    started_at: int
    lanes: dict[tuple[str, str], LaneStats]
    send: SendStats | None = None
    queue: QueueStats | None = None
    exports: dict[str, OutletStats] = {}


log = logging.getLogger(__name__)


class Draft(NamedTuple):
    """A request that is not written yet: how many points or records are in it, and what writes its body."""

    points: int
    encode: Callable[[], bytes]


class Source(Protocol):
    """Makes requests of what the agent knows."""

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Take what is new in a snapshot, in small steps."""
        ...

    def tell(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Take events; the snapshot is the newest before them."""
        ...

    def take(self) -> Draft | None:
        """Return everything gathered as one request, or None. What is gathered later does not change it."""
        ...


class Export:
    """One source, one outlet."""

    def __init__(self, source: Source, outlet: Outlet, *, interval_seconds: float) -> None:
        """Take both, and the seconds between requests."""
        self._source = source
        self._outlet = outlet
        self._interval = interval_seconds
        self._draft: Draft | None = None
        self._defects: dict[str, str] = {}  # of gathering and of writing, while there are any

    @property
    def name(self) -> str:
        """Its name in figures and capabilities."""
        return self._outlet.name

    @property
    def stats(self) -> OutletStats:
        """How it is doing."""
        return self._outlet.stats

    @property
    def capability(self) -> str:
        """`available`, or why it does not work."""
        error = next(iter(self._defects.values()), self.stats.last_error)
        return f"failing: {error}" if error else "available"

    async def offer(self, snapshot: Snapshot, stats: AgentStats, events: Sequence[Event] = ()) -> None:
        """Take a snapshot, and events. A defect in it costs this export, and nobody else."""
        try:
            if events:
                self._source.tell(snapshot, events)
            await in_slices(self._source.offer(snapshot, stats))
        except Exception as error:  # broad: any defect of one export must not end the agent's round, which others share
            self._failed("gathering", error)
            log.debug("export %s: defect", self.name, exc_info=True)
        else:
            self._defects.pop("gathering", None)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outlet.run(), name=f"export {self.name}")
            tasks.create_task(self._keep_taking(), name=f"gathering for {self.name}")

    async def flush(self) -> None:
        """Send what is left, once."""
        await self._take()
        await self._outlet.flush()

    async def _keep_taking(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._take()

    async def _take(self) -> None:
        """Write what was gathered, beside the loop: it takes tens of milliseconds; a stop leaves it for the flush."""
        try:
            while (draft := self._draft or self._source.take()) is not None:
                self._draft = draft
                body = await asyncio.to_thread(draft.encode)
                self._draft = None
                self._outlet.put(Parcel(body, draft.points))
        except Exception as error:  # broad: a defect in one body is told, and the next one is written all the same
            self._draft = None
            self._failed("writing", error)
            log.debug("export %s: defect", self.name, exc_info=True)
        else:
            self._defects.pop("writing", None)

    def _failed(self, step: str, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        if words != self._defects.get(step):
            log.error("export %s: a defect in %s, something is not told: %s", self.name, step, words)
        self._defects[step] = words
