"""Background loops of the flush stage: flushing the log to the store about once a second, and rollups."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from gpufleet.hub.flush.writer import StoreWriter
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.log import Wal, WalRecord
from gpufleet.model.errors import StoreError
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import StoreAdmin
from gpufleet.runtime import named_threads
from gpufleet.spool import SpoolGoneError

LOG = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 5.0
"""Longest pause between attempts while the store fails, and so until a recovered store is noticed."""

LOG_EVERY = 100
"""An unchanged error is logged again only after this many failures."""

LAST_ATTEMPTS = 2
"""Consecutive passes without progress while stopping, after which the backlog is left in the log for the next start."""


class Flusher:
    """Runs a `StoreWriter` on a separate thread, in order, one flush at a time."""

    def __init__(
        self,
        *,
        wal: Wal,
        writer: StoreWriter,
        thread: ThreadPoolExecutor,
        counters: Counters,
        clock: Clock,
        interval_seconds: float,
        max_records: int,
        max_bytes: int,
    ) -> None:
        self._wal = wal
        self._writer = writer
        self._thread = thread
        self._counters = counters
        self._clock = clock
        self._interval = interval_seconds
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._stop = asyncio.Event()
        self._idle_passes = 0  # consecutive, while stopping
        self.failures = 0  # consecutive

    def stop(self) -> None:
        """Make `run` flush the backlog and return."""
        self._stop.set()

    async def run(self) -> None:
        """Flush until stopped. Errors are counted, logged and retried; the log keeps the batches meanwhile.

        Raises:
            SpoolGoneError: if the files of the log were deleted, so that retrying is useless.
        """
        loop = asyncio.get_running_loop()
        last_error = ""
        while True:
            waiting = self._wal.waiting_records
            try:
                more = await loop.run_in_executor(self._thread, self._flush_once)
                if self.failures:
                    LOG.info("flushing works again; %d batches in the backlog", self._wal.waiting_records)
                self.failures = 0
                last_error = ""
            except SpoolGoneError:
                raise
            except Exception as error:  # noqa: BLE001 - the loop's one catch point; the log keeps the batches
                more = False
                self.failures += 1
                self._counters.flush_failures += 1
                if (detail := str(error)) != last_error or self.failures % LOG_EVERY == 0:
                    LOG.warning("flush failed (%d in a row), will retry: %s", self.failures, detail)
                last_error = detail
            if self._stop.is_set() and self._is_finished(waiting):
                return
            if not more:
                await self._pause()

    def _is_finished(self, before: int) -> bool:
        """Return whether the backlog is empty, or the last passes flushed nothing of it.

        `before` is the number of records in the backlog before the last pass.
        """
        waiting = self._wal.waiting_records
        self._idle_passes = 0 if waiting < before else self._idle_passes + 1
        if not waiting:
            return True
        if max(self.failures, self._idle_passes) < LAST_ATTEMPTS:
            return False
        LOG.warning("%d batches remain in the log for the next start", waiting)
        return True

    async def _pause(self) -> None:
        seconds = min(self._interval * 2**self.failures, MAX_PAUSE_SECONDS) if self.failures else self._interval
        if self._stop.is_set():
            if self.failures or self._idle_passes:
                await asyncio.sleep(min(seconds, self._interval, MAX_PAUSE_SECONDS))
            return
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    def _flush_once(self) -> bool:
        """Flush one group; return whether to flush the next one without a pause.

        That is so if the group was full and at least half as many records are left. A group also counts as full if the
        writer finished fewer records than it was given, because they decode to too many cells.
        """
        started = self._clock.monotonic()
        self._wal.check_files()
        repeat = self._writer.repeats
        records = self._next_records(repeat)
        if not records and repeat is None:
            return False
        done = self._writer.flush(records)
        self._wal.acknowledge(done)
        self._counters.last_flush_at = self._clock.now_ns()
        self._counters.last_flush_seconds = self._clock.monotonic() - started
        weight = sum(len(record.body) for record in records)
        is_full = 2 * len(records) >= self._max_records or 2 * weight >= self._max_bytes or len(done) < len(records)
        return bool(done) and is_full and 2 * self._wal.waiting_records >= len(done)

    def _next_records(self, repeat: range | None) -> list[WalRecord]:
        if repeat is None:
            return self._wal.read(0, max_records=self._max_records, max_bytes=self._max_bytes)
        # The limits may have been configured smaller since: the interrupted flush is repeated completely.
        records: list[WalRecord] = []
        after = repeat.start - 1
        while after < repeat.stop - 1:
            part = self._wal.read(after, max_records=self._max_records, max_bytes=self._max_bytes)
            records += [record for record in part if record.seq in repeat]
            if not part:
                break
            after = part[-1].seq
        if self._writer.needs_more_records:
            records += self._wal.read(after, max_records=self._max_records, max_bytes=self._max_bytes)
        return records


ROLLUP_PAUSE_SECONDS = 60.0
"""Pause between checks for an hour to roll up."""


@contextlib.asynccontextmanager
async def run_rollups(
    store: StoreAdmin, counters: Counters, clock: Clock, *, pause_seconds: float = ROLLUP_PAUSE_SECONDS
) -> AsyncIterator[None]:
    """Roll up hours while the context is open, one after the other, on a separate thread.

    A rollup in progress when the context closes is abandoned; its hour is unchanged.
    """
    stop = threading.Event()
    thread = named_threads(1, "hub-roller")
    loop = asyncio.get_running_loop()
    task = loop.run_in_executor(thread, _roll_up_until_stopped, store, counters, clock, stop, pause_seconds)
    try:
        yield
    finally:
        stop.set()
        await task
        thread.shutdown()


def _roll_up_until_stopped(
    store: StoreAdmin, counters: Counters, clock: Clock, stop: threading.Event, pause_seconds: float
) -> None:
    last_error = ""
    while not stop.is_set():
        try:
            hour = store.roll_up(clock.now_ns(), stop.is_set)
            last_error = ""
        except Exception as error:  # the loop's one catch point: the hour is unchanged and retried
            if not isinstance(error, StoreError):
                LOG.exception("rollup failed")
            elif (detail := str(error)) != last_error:  # log once while the store is down
                LOG.warning("rollup failed, will retry: %s", detail)
                last_error = detail
            counters.rollup_failures += 1
            hour = None
        if hour is None:
            stop.wait(pause_seconds)
            continue
        counters.rolled_hours += 1
        counters.rerolled_hours += hour.again
        LOG.debug("hour of %d: %d subjects in %.1f s", hour.start, hour.subjects, hour.seconds)
