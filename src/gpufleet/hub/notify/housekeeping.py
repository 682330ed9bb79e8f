"""Removal of old findings and silences, and of the positions of receivers that are no longer configured."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor

from gpufleet.model.errors import RegistryError
from gpufleet.model.time import NANOS
from gpufleet.ports.clock import Clock
from gpufleet.ports.findings import FindingRegistry

log = logging.getLogger(__name__)

DAY_NS = 86_400 * NANOS

RETENTION_DAYS = 90
"""Time for which findings are kept after their closing, and silences after their end."""

UNDELIVERED_DAYS = 2 * RETENTION_DAYS
"""The same for findings with a transition that a receiver does not have yet."""

REMOVE_SECONDS = 3600.0
"""Interval between two removals."""

PART = 500
"""Maximum number of findings, and of silences, in a transaction."""

PAUSE_SECONDS = 1.0
"""Time between two transactions of a removal."""

RETRY_SECONDS = 60.0
"""Time until the next attempt after an error of the registry."""


class FindingHousekeeping:
    """Task that removes old findings and silences every hour, in bounded transactions."""

    def __init__(
        self,
        registry: FindingRegistry,
        cursors: Collection[str],
        *,
        threads: Executor,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the registry.

        Args:
            registry: the findings.
            cursors: names of the positions of all configured receivers. Other positions are removed at the start.
            threads: threads for the registry.
            clock: wall time.
            sleep: waits a number of seconds.
        """
        self._registry, self._cursors = registry, cursors
        self._threads, self._clock, self._sleep = threads, clock, sleep
        self._has_kept_receivers = False
        self._is_failing = False

    async def run(self) -> None:
        """Remove until cancelled."""
        while True:
            await self._sleep(await self.advance())

    async def advance(self) -> float:
        """Remove one part; return the seconds until the next. Errors of the registry are retried."""
        try:
            is_complete = await asyncio.get_running_loop().run_in_executor(self._threads, self._remove)
        except RegistryError as error:
            if not self._is_failing:
                log.warning("old findings cannot be removed, will be retried: %s", error)
            self._is_failing = True
            return RETRY_SECONDS
        self._is_failing = False
        return REMOVE_SECONDS if is_complete else PAUSE_SECONDS

    def _remove(self) -> bool:
        """Remove one part; return whether nothing is left to remove."""
        if not self._has_kept_receivers:
            count = self._registry.keep_receivers(self._cursors)
            if count:
                log.info("removed %d positions of receivers that are no longer configured", count)
            self._has_kept_receivers = True
        now = self._clock.now_ns()
        before = now - RETENTION_DAYS * DAY_NS
        findings = self._registry.remove_findings(before, PART, undelivered_before=now - UNDELIVERED_DAYS * DAY_NS)
        return self._registry.remove_silences(before, PART) < PART and findings < PART
