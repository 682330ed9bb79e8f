"""Posts batches to the hub until each is taken: the newest first, then what waits from before at a bounded rate.

So after an outage the hub knows at once how things stand, and learns in its own time how they were. One bad batch
costs itself and not the ones behind it: it is set aside.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from gpufleet.agent.publish.queue import Queue, Queued
from gpufleet.delivery.export import SendStats
from gpufleet.delivery.pacing import Pace, retry_delay
from gpufleet.delivery.post import Answer, HubClient, Refused, Verdict
from gpufleet.model.errors import SpoolError
from gpufleet.ports.clock import Clock

log = logging.getLogger(__name__)

NOT_DURABLE_SECONDS = 0.05
"""Pause for a record that is in the queue and not on the disk yet."""


class _NotNowError(Exception):
    """The hub did not take it; it may later."""

    def __init__(self, words: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(words)


class Pusher:
    """One queue, one hub."""

    def __init__(
        self,
        queue: Queue,
        hub: HubClient,
        *,
        backfill: Pace,
        refused: Refused,
        stats: SendStats,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Take the queue, the hub, how fast old batches go, and where refused ones go.

        `jitter` gives numbers from 0 to 1.
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
        """Say that there is a new record."""
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
        """Post what waits, once, without regard to the rate; what the hub does not take stays where it is."""
        async with self._hub:
            try:
                while True:
                    await self._post_live()
                    if not await self._post_oldest():
                        return
            except _NotNowError as error:
                log.info("%d batches stay in the spool: %s", self._queue.records, error)

    async def _post_due(self) -> float | None:
        """Post all that may go now; return the seconds until more may, or None when only a new record can."""
        while True:
            await self._post_live()
            if self._queue.records == 0:
                return None
            if self._backfill.delay > 0:
                return self._backfill.delay
            if not await self._post_oldest():
                return NOT_DURABLE_SECONDS
            self._backfill.step()

    async def _post_live(self) -> None:
        while waiting := await self._live():
            for one in waiting:
                await self._post(one)

    async def _post_oldest(self) -> bool:
        try:
            oldest = await self._queue.oldest()
        except SpoolError as error:
            raise self._unreadable(error) from error
        if oldest is not None:
            await self._post(oldest)
        return oldest is not None

    async def _live(self) -> list[Queued]:
        try:
            return await self._queue.live()
        except SpoolError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: SpoolError) -> _NotNowError:
        self._fail(f"the spool cannot be read: {error}")
        return _NotNowError(str(error))

    async def _post(self, one: Queued) -> None:
        answer = await self._hub.post(one.body)
        match answer.verdict:
            case Verdict.TAKEN:
                await self._taken(one)
            case Verdict.REFUSED:
                await self._set_aside(one, f"{self._hub.url} refuses batch {one.seq}: {answer}")
            case Verdict.CONFLICT:
                await self._renew(one, answer)
                raise _NotNowError(str(answer), answer.retry_after)
            case Verdict.LATER:
                self._fail(f"{self._hub.url}: {answer}")
                raise _NotNowError(str(answer), answer.retry_after)

    async def _taken(self, one: Queued) -> None:
        await self._queue.acknowledge(one)
        if self._failures:
            log.info("the hub takes batches again; %d waiting", self._queue.records)
        self._failures = 0
        self._stats.acknowledged += 1
        self._stats.last_success = self._clock.now_ns()
        self._stats.last_error = ""

    async def _set_aside(self, one: Queued, words: str) -> None:
        where = await self._refused.keep(one.epoch, one.seq, one.body)
        await self._queue.acknowledge(one)
        self._stats.refused += 1
        self._stats.last_error = words
        log.error("%s; set aside in %s", words, where)
        self._failures = 0

    async def _renew(self, one: Queued, answer: Answer) -> None:
        """Number what waits anew. It counts as a failure, so that a hub that never has enough of it is not flooded."""
        self._fail(f"{self._hub.url}: {answer}")
        try:
            await self._queue.renew(one.epoch)
        except SpoolError as error:
            raise self._unreadable(error) from error
        self._stats.renewals += 1
        log.warning("epoch %s is another machine's too: what waits is posted again under a new one", one.epoch)

    def _fail(self, words: str) -> None:
        if words != self._stats.last_error:
            log.warning("not sent, will be tried again: %s", words)
        self._stats.failures += 1
        self._stats.last_error = words
        self._failures += 1
