"""Posts batches to the hub, oldest first, until each is taken.

What the hub does not take now (no answer, 5xx, 408, 429), or not from anybody at this address or not yet of this
cluster (401, 403, 404, 405, 407, redirects), waits on disk and is posted again. Any other 4xx is about that one
batch: it is set aside, so that one bad batch costs itself and not the ones behind it.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from datetime import UTC, datetime

import aiohttp

from gpufleet import __version__
from gpufleet.agent.backoff import parse_retry_after, retry_delay
from gpufleet.agent.refused import Refused
from gpufleet.agent.stats import SendStats
from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.model.errors import ConfigError, SpoolError
from gpufleet.ports import Clock
from gpufleet.spool import Spool

log = logging.getLogger(__name__)

READ_RECORDS = 64
READ_BYTES = 16 << 20
ANSWER_BYTES = 64 << 10

NOT_DURABLE_SECONDS = 0.05
"""Pause for a record that is in the queue and not on the disk yet."""

_LATER = frozenset({401, 403, 404, 405, 407, 408, 425, 429})


class _NotNowError(Exception):
    """The hub did not take it; it may later."""

    def __init__(self, words: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(words)


class Pusher:
    """One queue, one hub."""

    def __init__(
        self,
        queue: Spool,
        *,
        url: str,
        timeout_seconds: float,
        refused: Refused,
        stats: SendStats,
        clock: Clock,
        token: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Take the queue, the hub's root, and where refused batches go.

        `token` gives the token to present now, and raises ConfigError where there is none to be had; `tls` decides
        which hubs are trusted, the system's authorities unless given; `jitter` gives numbers from 0 to 1.
        """
        self._queue = queue
        self._url = f"{url.rstrip('/')}/v1/batches"
        self._timeout = timeout_seconds
        self._refused = refused
        self._stats = stats
        self._clock = clock
        self._token = token
        self._tls = tls
        self._jitter = jitter
        self._new = asyncio.Event()
        self._failures = 0

    def wake(self) -> None:
        """Say that there is a new record."""
        self._new.set()

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._session() as session:
            while True:
                try:
                    await self._post_all(session)
                except _NotNowError as error:
                    await asyncio.sleep(retry_delay(self._failures, error.retry_after, self._jitter()))
                    continue
                self._new.clear()
                if self._queue.depth.records == 0:
                    await self._new.wait()
                else:
                    await asyncio.sleep(NOT_DURABLE_SECONDS)

    async def flush(self) -> None:
        """Post what waits, once; what the hub does not take stays on disk."""
        async with self._session() as session:
            try:
                await self._post_all(session)
            except _NotNowError as error:
                log.info("%d batches stay in the spool: %s", self._queue.depth.records, error)

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"Content-Type": CONTENT_TYPE, "User-Agent": f"gpufleet-agent/{__version__}"},
            connector=aiohttp.TCPConnector(limit=1, ssl=self._tls or True),
        )

    async def _post_all(self, session: aiohttp.ClientSession) -> None:
        while records := await self._read():
            for seq, body in records:
                await self._post(session, seq, body)

    async def _read(self) -> list[tuple[int, bytes]]:
        try:
            return await asyncio.to_thread(self._queue.read, max_records=READ_RECORDS, max_bytes=READ_BYTES)
        except SpoolError as error:
            self._fail(f"the spool cannot be read: {error}")
            raise _NotNowError(str(error)) from error

    async def _post(self, session: aiohttp.ClientSession, seq: int, body: bytes) -> None:
        headers = self._authorization()
        try:
            async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                status = answer.status
                retry_after = parse_retry_after(answer.headers.get("Retry-After", ""), datetime.now(UTC))
                words = (await answer.content.read(ANSWER_BYTES)).decode("utf-8", "replace").strip()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._fail(f"{self._url}: {words}")
            raise _NotNowError(words) from error
        if 200 <= status < 300:
            await self._taken(seq)
        elif 400 <= status < 500 and status not in _LATER:
            await self._set_aside(seq, body, status, words)
        else:
            self._fail(f"{self._url} answers {status}: {words[:300]}")
            raise _NotNowError(f"answered {status}", retry_after)

    def _authorization(self) -> dict[str, str]:
        if self._token is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token()}"}
        except ConfigError as error:
            self._fail(str(error))
            raise _NotNowError(str(error)) from error

    async def _taken(self, seq: int) -> None:
        await asyncio.to_thread(self._queue.acknowledge, [seq])
        if self._failures:
            log.info("the hub takes batches again; %d waiting", self._queue.depth.records)
        self._failures = 0
        self._stats.acknowledged += 1
        self._stats.last_success = self._clock.now_ns()
        self._stats.last_error = ""

    async def _set_aside(self, seq: int, body: bytes, status: int, words: str) -> None:
        where = await self._refused.keep(self._queue.epoch, seq, body)
        await asyncio.to_thread(self._queue.acknowledge, [seq])
        self._stats.refused += 1
        self._stats.last_error = f"{self._url} refuses batch {seq} with {status}: {words[:300]}"
        log.error("%s; set aside in %s", self._stats.last_error, where)
        self._failures = 0

    def _fail(self, words: str) -> None:
        if words != self._stats.last_error:
            log.warning("not sent, will be tried again: %s", words)
        self._stats.failures += 1
        self._stats.last_error = words
        self._failures += 1
