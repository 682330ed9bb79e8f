"""Batches, numbered and on disk before anybody is asked to take them."""

import logging

from gpufleet import __version__
from gpufleet.agent.stats import QueueStats, SendStats
from gpufleet.codecs.batch import encode
from gpufleet.model.batch import Batch, MachineReport
from gpufleet.model.errors import SpoolError, WireError
from gpufleet.model.status import Heartbeat
from gpufleet.ports import Clock
from gpufleet.spool import Spool

log = logging.getLogger(__name__)


class Outbox:
    """Makes batches and puts them in the queue. What cannot be put is counted as lost, and said in heartbeats."""

    def __init__(
        self,
        queue: Spool,
        *,
        cluster: str,
        sender: str,
        heartbeat_seconds: float,
        config_hash: str,
        clock: Clock,
    ) -> None:
        """Take the queue, who we are, and how often we say that we live."""
        self._queue = queue
        self._cluster = cluster
        self._sender = sender
        self._heartbeat_seconds = heartbeat_seconds
        self._config_hash = config_hash
        self._clock = clock
        self._started_at = clock.now_ns()
        self._next_heartbeat = clock.monotonic()
        self._failing = False
        self.stats = SendStats()

    def heartbeat_due_in(self) -> float:
        """Return the seconds until a heartbeat is due; 0 when it is."""
        return max(0.0, self._next_heartbeat - self._clock.monotonic())

    def queue_stats(self) -> QueueStats:
        """Return the queue as it is now."""
        depth = self._queue.depth
        return QueueStats(records=depth.records, bytes=depth.bytes, dropped=self._queue.dropped_total)

    async def post(self, report: MachineReport | None) -> bool:
        """Put the report in the queue, with a heartbeat if one is due; say whether there is a new record."""
        beats = self.heartbeat_due_in() == 0.0
        if report is None and not beats:
            return False
        batch = Batch(
            cluster=self._cluster,
            sender=self._sender,
            epoch=self._queue.epoch,
            seq=self._queue.next_seq,
            sent_at=self._clock.now_ns(),
            heartbeat=self._heartbeat() if beats else None,
            reports=() if report is None else (report,),
        )
        try:
            await self._queue.put(encode(batch))
        except (SpoolError, WireError, UnicodeEncodeError) as error:
            self.stats.lost += 1
            if not self._failing:
                log.error("a batch is lost, and so are those after it until this is mended: %s", error)
            self._failing = True
            return False
        if self._failing:
            log.info("batches are kept again; %d were lost", self.stats.lost)
        self._failing = False
        self.stats.batches += 1
        if beats:
            self._next_heartbeat = self._clock.monotonic() + self._heartbeat_seconds
        return True

    def _heartbeat(self) -> Heartbeat:
        queue = self.queue_stats()
        return Heartbeat(
            interval_seconds=self._heartbeat_seconds,
            version=__version__,
            started_at=self._started_at,
            config_hash=self._config_hash,
            queue_records=queue.records,
            queue_bytes=queue.bytes,
            dropped_total=queue.dropped + self.stats.lost,
        )
