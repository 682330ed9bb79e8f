"""Posts queued batches to the hub until each is accepted: new batches first, the backlog at a bounded rate.

After an outage the hub gets current values first. A bad batch is set aside and does not block the batches behind it.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from gpufleet.delivery.batch_queue import BatchQueue, QueuedBatch
from gpufleet.delivery.export import SendStats
from gpufleet.delivery.pacing import Pacer, retry_delay
from gpufleet.delivery.post import HubAnswer, HubClient, HubVerdict, RejectedBatches
from gpufleet.model.errors import SpoolError
from gpufleet.ports.clock import Clock

log = logging.getLogger(__name__)

NOT_DURABLE_SECONDS = 0.05
"""Pause for a record that is queued but not durable yet."""


class _NotNowError(Exception):
    """The hub did not accept the batch now; retry later."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Pusher:
    """Posts one queue to one hub."""

    def __init__(
        self,
        queue: BatchQueue,
        hub: HubClient,
        *,
        backfill: Pacer,
        refused: RejectedBatches,
        stats: SendStats,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Take the queue, the hub, the backfill rate, and the folder of rejected batches.

        `jitter` returns numbers from 0 to 1.
        """
        self._queue = queue
        self._hub = hub
        self._backfill = backfill
        self._refused = refused
        self._stats = stats
        self._clock = clock
        self._jitter = jitter
        self._new = asyncio.Event()
        self._failures = 0

    def wake(self) -> None:
        """Signal a new record."""
        self._new.set()

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._hub:
            while True:
                self._new.clear()
                try:
                    pause = await self._post_due()
                except _NotNowError as error:
                    await asyncio.sleep(retry_delay(self._failures, error.retry_after, self._jitter()))
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._new.wait()

    async def flush(self) -> None:
        """Post the whole queue once, regardless of the rate; batches that the hub does not accept stay queued."""
        async with self._hub:
            try:
                while True:
                    await self._post_live()
                    if not await self._post_oldest():
                        return
            except _NotNowError as error:
                log.info("%d batches stay in the spool: %s", self._queue.readable_records, error)

    async def _post_due(self) -> float | None:
        """Post everything that is due. Return the seconds until more is due, or None if the queue is empty."""
        while True:
            await self._post_live()
            if self._queue.readable_records == 0:
                return None
            if self._backfill.delay > 0:
                return self._backfill.delay
            if not await self._post_oldest():
                return NOT_DURABLE_SECONDS
            self._backfill.step()

    async def _post_live(self) -> None:
        while newest := await self._live():
            for batch in newest:
                await self._post(batch)

    async def _post_oldest(self) -> bool:
        try:
            oldest = await self._queue.oldest()
        except SpoolError as error:
            raise self._unreadable(error) from error
        if oldest is not None:
            await self._post(oldest)
        return oldest is not None

    async def _live(self) -> list[QueuedBatch]:
        try:
            return await self._queue.live()
        except SpoolError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: SpoolError) -> _NotNowError:
        self._fail(f"the spool cannot be read: {error}")
        return _NotNowError(str(error))

    async def _post(self, one: QueuedBatch) -> None:
        answer = await self._hub.post(one.body)
        match answer.verdict:
            case HubVerdict.ACCEPTED:
                await self._accepted(one)
            case HubVerdict.REJECTED:
                await self._set_aside(one, f"{self._hub.url} rejects batch {one.seq}: {answer}")
            case HubVerdict.CONFLICT:
                await self._renew(one, answer)
                raise _NotNowError(str(answer), answer.retry_after)
            case HubVerdict.RETRY:
                self._fail(f"{self._hub.url}: {answer}")
                raise _NotNowError(str(answer), answer.retry_after)

    async def _accepted(self, one: QueuedBatch) -> None:
        await self._queue.acknowledge(one)
        if self._failures:
            log.info("the hub accepts batches again; %d queued", self._queue.readable_records)
        self._failures = 0
        self._stats.acknowledged += 1
        self._stats.last_success = self._clock.now_ns()
        self._stats.last_error = ""

    async def _set_aside(self, one: QueuedBatch, message: str) -> None:
        where = await self._refused.keep(one.epoch, one.seq, one.body)
        await self._queue.acknowledge(one)
        self._stats.refused += 1
        self._stats.last_error = message
        log.error("%s; set aside in %s", message, where)
        self._failures = 0

    async def _renew(self, one: QueuedBatch, answer: HubAnswer) -> None:
        """Renumber the queue under a new epoch. Counts as a failure, so that repeated conflicts back off."""
        self._fail(f"{self._hub.url}: {answer}")
        try:
            await self._queue.renew(one.epoch)
        except SpoolError as error:
            raise self._unreadable(error) from error
        self._stats.renewals += 1
        log.warning("epoch %s is also used by another machine: the queue is posted under a new epoch", one.epoch)

    def _fail(self, message: str) -> None:
        if message != self._stats.last_error:
            log.warning("not sent, will be retried: %s", message)
        self._stats.failures += 1
        self._stats.last_error = message
        self._failures += 1
