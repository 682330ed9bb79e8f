"""Receivers of findings: the loop of each."""

import abc
import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from gpufleet.delivery.pacing import retry_delay
from gpufleet.hub.notify.feed import FindingFeed
from gpufleet.hub.notify.stats import ReceiverStats
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.ports.clock import Clock

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""Interval between checks for new transitions."""

QUIET_SECONDS = 120.0
"""Time without a failure after which a receiver counts as working again.

So a receiver that alternates between success and failure causes no line in the log for each attempt.
"""


class FindingReceiver(abc.ABC):
    """Receiver of the transitions of findings. `run` delivers; it may be called again after it failed.

    Attributes:
        name: unique name, in logs, metrics and the registry.
        stats: counters.
    """

    def __init__(
        self,
        name: str,
        feed: FindingFeed,
        *,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the findings.

        Args:
            name: unique name.
            feed: the findings.
            clock: wall and monotonic time.
            jitter: returns numbers from 0 to 1.
            sleep: waits a number of seconds.
        """
        self.name = name
        self.stats = ReceiverStats(name)
        self._feed, self._clock, self._jitter, self._sleep = feed, clock, jitter, sleep
        self._failures = 0
        self._retry_at = 0.0
        self._failed_at: float | None = None  # newest failure since the receiver last worked
        self._lost_at: float | None = None  # newest dead letter or rejection
        self._is_resumed = False

    @property
    def cursors(self) -> tuple[str, ...]:
        """Names under which the registry has the receiver's positions."""
        return (self.name,)

    async def run(self) -> None:
        """Deliver until cancelled."""
        self._is_resumed = False
        while True:
            await self._sleep(await self.advance())

    async def advance(self) -> float:
        """Do what is due; return the seconds until more is due. Errors of registry and store are retried."""
        delay = POLL_SECONDS
        try:
            await self._feed.refresh()
            if self._clock.monotonic() >= self._retry_at:
                delay = await self._attempt()
        except (RegistryError, StoreError) as error:
            self._retry_later(str(error))
        self.stats.newest = max(self._feed.newest, self.stats.position)
        until_retry = self._retry_at - self._clock.monotonic()
        return delay if until_retry <= 0 else min(until_retry, POLL_SECONDS)

    async def _attempt(self) -> float:
        failures = self.stats.failures
        if not self._is_resumed:
            await self._resume()
            self._is_resumed = True
        delay = await self._step()
        if self.stats.failures == failures and not self._has_failing:
            self._note_recovery()
        return delay

    @property
    def _has_failing(self) -> bool:
        """Whether a delivery failed and will be retried. Retries by `_retry_later` do not count."""
        return False

    @abc.abstractmethod
    async def _resume(self) -> None:
        """Read the position, and set it for a new receiver."""

    @abc.abstractmethod
    async def _step(self) -> float:
        """Do what is due; return the seconds until more is due."""

    async def _save(self, position: int) -> None:
        """Store the position if it changed."""
        if position != self.stats.position:
            await self._feed.save(self.name, position)
            self.stats.position = position

    def _succeeded(self, count: int) -> None:
        self._failures = 0
        self.stats.sent += count
        self.stats.last_success = self._clock.now_ns()
        self.stats.last_error = ""

    def _failed(self, detail: str) -> None:
        """Count a failed attempt. The first one since the receiver last worked is logged."""
        self._failures += 1
        self.stats.failures += 1
        self.stats.last_error = detail
        if self._failed_at is None:
            log.warning("%s: findings are not delivered, will be retried: %s", self.name, detail)
        self._failed_at = self._clock.monotonic()

    def _retry_later(self, detail: str, retry_after: float | None = None) -> None:
        """Count a failed attempt and delay the next one, at least by the seconds of Retry-After."""
        self._failed(detail)
        delay = retry_delay(self._failures, retry_after, self._jitter())
        self._retry_at = max(self._retry_at, self._clock.monotonic() + delay)

    def _note_recovery(self) -> None:
        """Log that the receiver works again, once it has not failed for `QUIET_SECONDS`."""
        if self._failed_at is not None and self._clock.monotonic() - self._failed_at >= QUIET_SECONDS:
            log.info("%s: findings are delivered again", self.name)
            self._failed_at, self.stats.last_error = None, ""

    def _lose(self, count: int, detail: str, where: str) -> None:
        """Count dead letters. They are logged if there was none for `QUIET_SECONDS`."""
        now = self._clock.monotonic()
        self.stats.dead += count
        self.stats.last_error = detail
        if self._lost_at is None or now - self._lost_at >= QUIET_SECONDS:
            log.error("%s: notifications are not delivered and not retried: %s; kept in %s", self.name, detail, where)
        self._lost_at = now
