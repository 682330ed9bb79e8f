"""The flusher's loop: about once a second, what the log holds goes to the store.

The loop that has minutes and hours made of what was measured.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from gpufleet.hub.flush.writer import Writer
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.log import Wal, WalRecord
from gpufleet.model.errors import StoreError
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import Store
from gpufleet.runtime import named_threads

LOG = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 5.0
"""The longest pause between attempts while the store cannot be written: so long may it be back unnoticed."""

TOLD_EVERY = 100
"""The same words are logged again only after so many failures."""

LAST_ATTEMPTS = 2
"""Failures in a row, while stopping, after which the rest is left in the log for the next start."""


class Flusher:
    """Runs a `Writer` on its own thread, in order, one flush at a time."""

    def __init__(
        self,
        *,
        wal: Wal,
        writer: Writer,
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
        self.failures = 0  # in a row

    def stop(self) -> None:
        """Flush what there is, then let `run` return."""
        self._stop.set()

    async def run(self) -> None:
        """Flush until stopped. Trouble is counted, told and tried again: the log holds meanwhile."""
        loop = asyncio.get_running_loop()
        told = ""
        while True:
            try:
                more = await loop.run_in_executor(self._thread, self._flush_once)
                if self.failures:
                    LOG.info("flushing works again; %d batches waiting", self._wal.waiting_records)
                self.failures = 0
                told = ""
            except Exception as error:  # noqa: BLE001 - the loop's one catch point: whatever it is, the log holds
                more = False
                self.failures += 1
                self._counters.flush_failures += 1
                if (words := str(error)) != told or self.failures % TOLD_EVERY == 0:
                    LOG.warning("flush failed (%d in a row), will try again: %s", self.failures, words)
                told = words
            if self._stop.is_set() and self._is_finished():
                return
            if not more:
                await self._pause()

    def _is_finished(self) -> bool:
        return self.failures >= LAST_ATTEMPTS or (self.failures == 0 and self._wal.waiting_records == 0)

    async def _pause(self) -> None:
        seconds = min(self._interval * 2**self.failures, MAX_PAUSE_SECONDS) if self.failures else self._interval
        if self._stop.is_set():
            if self.failures:
                await asyncio.sleep(min(seconds, self._interval))
            return
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    def _flush_once(self) -> bool:
        """Flush one group, and return whether the next need not wait: it was a full one, and half as many are left.

        Where the writer takes fewer than the log gives, as they unpack to too much, a small rest is no group by itself.
        """
        started = self._clock.monotonic()
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
        return is_full and 2 * self._wal.waiting_records >= len(done)

    def _next_records(self, repeat: range | None) -> list[WalRecord]:
        if repeat is None:
            return self._wal.read(0, max_records=self._max_records, max_bytes=self._max_bytes)
        # Bounds may have been configured smaller since: what was begun is repeated whole.
        records: list[WalRecord] = []
        after = repeat.start - 1
        while after < repeat.stop - 1:
            some = self._wal.read(after, max_records=self._max_records, max_bytes=self._max_bytes)
            records += [record for record in some if record.seq in repeat]
            if not some:
                break
            after = some[-1].seq
        if self._writer.wants_company:
            records += self._wal.read(after, max_records=self._max_records, max_bytes=self._max_bytes)
        return records


ROLLUP_LOG = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0
"""Between looks for an hour that should be made."""


@contextlib.asynccontextmanager
async def rolling(
    store: Store, counters: Counters, clock: Clock, *, pause_seconds: float = PAUSE_SECONDS
) -> AsyncIterator[None]:
    """Have hours made while the context is open, one after the other, on a thread of its own.

    One that is being made when the context closes is left as it was.
    """
    stop = threading.Event()
    thread = named_threads(1, "hub-roller")
    task = asyncio.get_running_loop().run_in_executor(thread, _roll, store, counters, clock, stop, pause_seconds)
    try:
        yield
    finally:
        stop.set()
        await task
        thread.shutdown()


def _roll(store: Store, counters: Counters, clock: Clock, stop: threading.Event, pause_seconds: float) -> None:
    told = ""
    while not stop.is_set():
        try:
            hour = store.roll_up(clock.now_ns(), stop.is_set)
            told = ""
        except Exception as error:  # noqa: BLE001 - the loop's one catch point: the hour is unchanged and retried
            if not isinstance(error, StoreError):
                ROLLUP_LOG.exception("minutes and hours could not be made")
            elif (words := str(error)) != told:  # a store that is away for hours is told of once
                ROLLUP_LOG.warning("minutes and hours could not be made: %s", words)
                told = words
            counters.rollup_failures += 1
            hour = None
        if hour is None:
            stop.wait(pause_seconds)
            continue
        counters.rolled_hours += 1
        counters.rolled_again += hour.again
        ROLLUP_LOG.debug("hour of %d: %d machines in %.1f s", hour.start, hour.machines, hour.seconds)
