"""Bounded HTTP requests to an exporter, directly or over any channel with streams.

Redirects are not followed and proxies are not used: the response is from the dialled server. Responses are not
decompressed, so that a small response cannot expand to a large one.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

import aiohttp
import h11
import msgspec

from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import Dialer, Stream

MAX_PAGE_BYTES = 16 << 20
"""Maximum page size; a page of 16 GPUs with every counter has about 1 MB."""

MAX_HEAD_BYTES = 64 << 10

ACCEPT = "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5"
CHUNK_BYTES = 64 << 10


class MemoryBudget(Protocol):
    """Limit on the memory of the pages of all exporters together."""

    def take(self, count: int) -> bool:
        """Reserve `count` bytes; return False without a reservation if they exceed the limit."""
        ...

    def release(self, count: int) -> None:
        """Release reserved bytes."""
        ...


class ScrapedPage(msgspec.Struct, frozen=True):
    """Unparsed page of an exporter.

    Attributes:
        body: content of the response.
        openmetrics: whether the content type is OpenMetrics.
        done: releases the memory reservation; to be called when `body` is no longer needed.
    """

    body: bytes
    openmetrics: bool
    done: Callable[[], None] = lambda: None


class PageFetcher(Protocol):
    """Fetches pages of one exporter."""

    @property
    def where(self) -> str:
        """Address, for error messages."""
        ...

    async def fetch(self) -> ScrapedPage:
        """Fetch the current page.

        Raises:
            ChannelError: on timeout, a status other than 200, or a page that exceeds the limits.
            ConfigError: if the token cannot be read.
        """
        ...


class UrlPageFetcher:
    """Fetches pages from an HTTP server."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        token: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        budget: MemoryBudget | None = None,
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> None:
        """Create the fetcher.

        Args:
            url: of the page.
            timeout_seconds: timeout of the whole request.
            token: returns the current bearer token; None for no authentication.
            tls: TLS context; None for the system's certificate authorities.
            budget: shared limit on the memory of pages; None for the limit of each page only.
            max_bytes: maximum size of a page.
        """
        self.where = url
        self._timeout, self._token, self._tls = timeout_seconds, token, tls
        self._budget, self._max_bytes = budget, max_bytes

    async def fetch(self) -> ScrapedPage:
        """Fetch the page."""
        headers = _headers(self._token)
        page = _BodyBuffer(self.where, self._budget, self._max_bytes)
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=self._timeout), auto_decompress=False, trust_env=False
                ) as session,
                session.get(
                    self.where,
                    allow_redirects=False,
                    headers=headers,
                    ssl=True if self._tls is None else self._tls,
                ) as answer,
            ):
                _check_response(self.where, answer.status, answer.headers.get("content-encoding", ""))
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    page.add(chunk)
                taken, page = page, _BodyBuffer(self.where, None, 0)  # the caller closes it by `done`
                return ScrapedPage(taken.content, _is_openmetrics(answer.headers.get("content-type", "")), taken.close)
        except TimeoutError:
            raise _timeout_error(self.where, self._timeout) from None
        except aiohttp.ClientError as error:
            raise ChannelError(f"{self.where}: {error}", ChannelProblem.UNREACHABLE) from None
        finally:
            page.close()


class StreamPageFetcher:
    """Fetches pages from an HTTP server over a channel: a Unix socket, a guest's vsock port."""

    def __init__(
        self,
        dialer: Dialer,
        *,
        where: str,
        path: str = "/metrics",
        timeout_seconds: float,
        max_bytes: int = MAX_PAGE_BYTES,
        token: Callable[[], str] | None = None,
    ) -> None:
        """Create the fetcher.

        Args:
            dialer: opens a stream to the server.
            where: address of the server, for error messages.
            path: of the page.
            timeout_seconds: timeout of the whole request.
            max_bytes: maximum size of a page.
            token: returns the current bearer token; None for no authentication.
        """
        self.where, self._max_bytes = where, max_bytes
        self._dialer, self._path, self._timeout, self._token = dialer, path, timeout_seconds, token

    async def fetch(self) -> ScrapedPage:
        """Fetch the page."""
        headers = _headers(self._token)
        try:
            async with asyncio.timeout(self._timeout):
                stream = await self._dialer.dial()
                try:
                    return await self._exchange(stream, headers)
                finally:
                    await stream.close()
        except TimeoutError:
            raise _timeout_error(self.where, self._timeout) from None
        except h11.RemoteProtocolError as error:
            raise ChannelError(f"{self.where}: the response is not HTTP: {error}", ChannelProblem.PROTOCOL) from None

    async def _exchange(self, stream: Stream, headers: dict[str, str]) -> ScrapedPage:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        fields = [("host", "localhost"), ("connection", "close"), *headers.items()]
        request = connection.send(h11.Request(method="GET", target=self._path, headers=fields)) or b""
        await stream.send(request + (connection.send(h11.EndOfMessage()) or b""))
        page, openmetrics = _BodyBuffer(self.where, None, self._max_bytes), False
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive(CHUNK_BYTES))
            elif isinstance(event, h11.Response):
                received = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                _check_response(self.where, event.status_code, received.get("content-encoding", ""))
                openmetrics = _is_openmetrics(received.get("content-type", ""))
            elif isinstance(event, h11.Data):
                page.add(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return ScrapedPage(page.content, openmetrics)
            elif not isinstance(event, h11.InformationalResponse):
                raise ChannelError(f"{self.where}: the server closed the connection", ChannelProblem.ENDED)


def _headers(token: Callable[[], str] | None) -> dict[str, str]:
    headers = {"accept": ACCEPT, "accept-encoding": "identity", "user-agent": "gpufleet"}
    return headers if token is None else {**headers, "authorization": f"Bearer {token()}"}


def _check_response(where: str, status: int, encoding: str) -> None:
    if 300 <= status < 400:
        message = f"{where}: status {status}: redirects are not followed, configure the final URL"
        raise ChannelError(message, ChannelProblem.PROTOCOL)
    if status in (401, 403):
        raise ChannelError(f"{where}: status {status}: a valid token is required", ChannelProblem.AUTHENTICATION)
    if status != 200:
        raise ChannelError(f"{where}: status {status}", ChannelProblem.PROTOCOL)
    if encoding not in ("", "identity"):
        raise ChannelError(
            f"{where}: the response has the encoding {encoding[:32]!r}, which was not requested",
            ChannelProblem.PROTOCOL,
        )


class _BodyBuffer:
    """Buffer of a page, limited by its own maximum and by the shared budget."""

    def __init__(self, where: str, budget: MemoryBudget | None, limit: int) -> None:
        self._where, self._budget, self._limit = where, budget, limit
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)

    def add(self, chunk: bytes) -> None:
        if self._held + len(chunk) > self._limit:
            raise ChannelError(f"{self._where}: the page exceeds {self._limit} bytes", ChannelProblem.TOO_LARGE)
        if self._budget is not None and not self._budget.take(len(chunk)):
            message = f"{self._where}: too many pages and request bodies are being received at once"
            raise ChannelError(message, ChannelProblem.TOO_LARGE)
        self._held += len(chunk)
        self._parts.append(chunk)

    def close(self) -> None:
        """Release the reservation; a second call has no effect."""
        if self._budget is not None:
            self._budget.release(self._held)
        self._held, self._parts = 0, []


def _is_openmetrics(content_type: str) -> bool:
    return content_type.strip().lower().startswith("application/openmetrics-text")


def _timeout_error(where: str, seconds: float) -> ChannelError:
    return ChannelError(f"{where}: no response within {seconds:g} s", ChannelProblem.TIMEOUT)
