"""The outbox: builds batches and queues them durably before any is posted."""

import logging

from gpufleet import __version__
from gpufleet.codecs.batch import encode
from gpufleet.delivery.batch_queue import BatchQueue
from gpufleet.delivery.export import QueueStats, SendStats
from gpufleet.delivery.pusher import Pusher
from gpufleet.model.errors import SpoolError, WireError
from gpufleet.model.status import Heartbeat
from gpufleet.model.wire.batch import Batch, ClusterPart, MachineReport
from gpufleet.ports.clock import Clock

log = logging.getLogger(__name__)


class Outbox:
    """Builds batches and puts them in the queue. Losses are counted and reported in heartbeats."""

    def __init__(
        self,
        queue: BatchQueue,
        *,
        cluster: str,
        sender: str,
        heartbeat_seconds: float,
        config_hash: str,
        clock: Clock,
    ) -> None:
        """Take the queue, this sender's identity, and the heartbeat interval."""
        self._queue = queue
        self._cluster = cluster
        self._sender = sender
        self._heartbeat_seconds = heartbeat_seconds
        self._config_hash = config_hash
        self._clock = clock
        self._started_at = clock.now_ns()
        self._next_heartbeat = clock.monotonic()
        self._not_made = 0
        self._failing = False
        self.stats = SendStats()

    def heartbeat_due_in(self) -> float:
        """Return the seconds until the next heartbeat is due."""
        return max(0.0, self._next_heartbeat - self._clock.monotonic())

    def queue_stats(self) -> QueueStats:
        """Return the current depth of the queue."""
        queue = self._queue
        return QueueStats(
            records=queue.records, bytes=queue.waiting_bytes, dropped=queue.dropped, in_memory=queue.memory_records
        )

    async def post(self, *reports: MachineReport | None, cluster_part: ClusterPart | None = None) -> bool:
        """Queue the reports, with a heartbeat if one is due; return whether a batch was queued."""
        beats = self.heartbeat_due_in() == 0.0
        present = tuple(report for report in reports if report is not None)
        if not present and cluster_part is None and not beats:
            return False
        sent_at = self._clock.now_ns()
        heartbeat = self._heartbeat() if beats else None
        measured = (sample.measured_at for report in present for sample in report.samples)

        def make(epoch: str, seq: int) -> bytes:
            return encode(
                Batch(
                    cluster=self._cluster,
                    sender=self._sender,
                    epoch=epoch,
                    seq=seq,
                    sent_at=sent_at,
                    heartbeat=heartbeat,
                    reports=present,
                    cluster_part=cluster_part,
                )
            )

        try:
            await self._queue.put(make, min(measured, default=sent_at))
        except (SpoolError, WireError) as error:
            self._not_made += 1
            self.stats.lost = self._lost
            if not self._failing:
                log.error("batches are lost until this is fixed: %s", error)
            self._failing = True
            return False
        if self._failing:
            log.info("batches are queued again; %d were lost", self._lost)
        self._failing = False
        self.stats.batches += 1
        self.stats.lost = self._lost
        if beats:
            self._next_heartbeat = self._clock.monotonic() + self._heartbeat_seconds
        return True

    @property
    def _lost(self) -> int:
        return self._not_made + self._queue.lost

    def _heartbeat(self) -> Heartbeat:
        queue = self.queue_stats()
        return Heartbeat(
            interval_seconds=self._heartbeat_seconds,
            version=__version__,
            started_at=self._started_at,
            config_hash=self._config_hash,
            queue_records=queue.records,
            queue_bytes=queue.bytes,
            oldest_unsent=self._queue.oldest_at,
            dropped_total=None if queue.dropped is None else queue.dropped + self._lost,
        )


class Delivery:
    """Both ends of the queue to the hub."""

    def __init__(self, outbox: Outbox, pusher: Pusher) -> None:
        """Take the producer and the consumer of the queue."""
        self.outbox = outbox
        self.pusher = pusher

    @property
    def capability(self) -> str:
        """`available`, or the error that prevents pushing."""
        error = self.outbox.stats.last_error
        return f"failing: {error}" if error else "available"
