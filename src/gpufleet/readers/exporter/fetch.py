"""One bounded question to an exporter: over HTTP, or over any channel that carries a stream.

Redirects are not followed and proxies not asked: who answers is who was dialled. Nothing is decompressed: a small
answer cannot become a large one.
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
"""A page of 16 GPUs with every counter has about 1 MB."""

MAX_HEAD_BYTES = 64 << 10

ACCEPT = "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5"
CHUNK_BYTES = 64 << 10


class Room(Protocol):
    """A bound on the memory that pages of many exporters may take together."""

    def take(self, count: int) -> bool:
        """Hold `count` bytes more; False, holding nothing, where there is no room for them."""
        ...

    def give_back(self, count: int) -> None:
        """Let go of bytes that were held."""
        ...


class Answer(msgspec.Struct, frozen=True):
    """A page as it came.

    Attributes:
        body: its bytes.
        openmetrics: whether the server calls it OpenMetrics.
        done: to be called once the bytes are not needed any more.
    """

    body: bytes
    openmetrics: bool
    done: Callable[[], None] = lambda: None


class Pages(Protocol):
    """Where pages come from."""

    @property
    def where(self) -> str:
        """The address, for words of errors."""
        ...

    async def fetch(self) -> Answer:
        """Fetch the page as it is now.

        Raises:
            ChannelError: if it does not come in time, with 200 and within the bounds.
            ConfigError: if there is no token to present.
        """
        ...


class UrlPages:
    """Pages of an HTTP server."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        token: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        room: Room | None = None,
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> None:
        """Prepare it.

        Args:
            url: of the page.
            timeout_seconds: for the whole of it.
            token: gives the bearer token for now, or None.
            tls: who is trusted, or None for the system's authorities.
            room: for pages that are held at once; None for no other bound than that of each.
            max_bytes: of a page.
        """
        self.where = url
        self._timeout, self._token, self._tls = timeout_seconds, token, tls
        self._room, self._max_bytes = room, max_bytes

    async def fetch(self) -> Answer:
        """Fetch the page."""
        headers = _headers(self._token)
        page = _Body(self.where, self._room, self._max_bytes)
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
                _check(self.where, answer.status, answer.headers.get("content-encoding", ""))
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    page.add(chunk)
                taken, page = page, _Body(self.where, None, 0)  # who takes it closes it
                return Answer(taken.content, _is_openmetrics(answer.headers.get("content-type", "")), taken.close)
        except TimeoutError:
            raise _late(self.where, self._timeout) from None
        except aiohttp.ClientError as error:
            raise ChannelError(f"{self.where}: {error}", ChannelProblem.UNREACHABLE) from None
        finally:
            page.close()


class StreamPages:
    """Pages of an HTTP server behind a channel: a Unix socket, a guest's vsock port."""

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
        """Prepare it.

        Args:
            dialer: opens a stream to the server.
            where: its address, for words of errors.
            path: of the page.
            timeout_seconds: for the whole of it.
            max_bytes: of a page.
            token: gives the bearer token for now, or None.
        """
        self.where, self._max_bytes = where, max_bytes
        self._dialer, self._path, self._timeout, self._token = dialer, path, timeout_seconds, token

    async def fetch(self) -> Answer:
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
            raise _late(self.where, self._timeout) from None
        except h11.RemoteProtocolError as error:
            raise ChannelError(f"{self.where}: it does not speak HTTP: {error}", ChannelProblem.PROTOCOL) from None

    async def _exchange(self, stream: Stream, headers: dict[str, str]) -> Answer:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        wanted = [("host", "localhost"), ("connection", "close"), *headers.items()]
        question = connection.send(h11.Request(method="GET", target=self._path, headers=wanted)) or b""
        await stream.send(question + (connection.send(h11.EndOfMessage()) or b""))
        page, openmetrics = _Body(self.where, None, self._max_bytes), False
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive(CHUNK_BYTES))
            elif isinstance(event, h11.Response):
                said = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
                _check(self.where, event.status_code, said.get("content-encoding", ""))
                openmetrics = _is_openmetrics(said.get("content-type", ""))
            elif isinstance(event, h11.Data):
                page.add(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return Answer(page.content, openmetrics)
            elif not isinstance(event, h11.InformationalResponse):
                raise ChannelError(f"{self.where}: it hung up", ChannelProblem.ENDED)


def _headers(token: Callable[[], str] | None) -> dict[str, str]:
    headers = {"accept": ACCEPT, "accept-encoding": "identity", "user-agent": "gpufleet"}
    return headers if token is None else {**headers, "authorization": f"Bearer {token()}"}


def _check(where: str, status: int, encoding: str) -> None:
    if 300 <= status < 400:
        words = f"{where}: it answers {status}, and redirects are not followed: name the page itself"
        raise ChannelError(words, ChannelProblem.PROTOCOL)
    if status in (401, 403):
        raise ChannelError(f"{where}: it answers {status}: it asks for a token", ChannelProblem.AUTHENTICATION)
    if status != 200:
        raise ChannelError(f"{where}: it answers {status}", ChannelProblem.PROTOCOL)
    if encoding not in ("", "identity"):
        raise ChannelError(f"{where}: it answers in {encoding[:32]!r}, unasked", ChannelProblem.PROTOCOL)


class _Body:
    """A page that is coming, within its own bound and that of all together."""

    def __init__(self, where: str, room: Room | None, limit: int) -> None:
        self._where, self._room, self._limit = where, room, limit
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)

    def add(self, chunk: bytes) -> None:
        if self._held + len(chunk) > self._limit:
            raise ChannelError(f"{self._where}: more than {self._limit} bytes", ChannelProblem.TOO_LARGE)
        if self._room is not None and not self._room.take(len(chunk)):
            words = f"{self._where}: too many pages and bodies are on their way here at once"
            raise ChannelError(words, ChannelProblem.TOO_LARGE)
        self._held += len(chunk)
        self._parts.append(chunk)

    def close(self) -> None:
        """Let go of the room; a second close does nothing."""
        if self._room is not None:
            self._room.give_back(self._held)
        self._held, self._parts = 0, []


def _is_openmetrics(content_type: str) -> bool:
    return content_type.strip().lower().startswith("application/openmetrics-text")


def _late(where: str, seconds: float) -> ChannelError:
    return ChannelError(f"{where}: no answer in {seconds:g} s", ChannelProblem.TIMEOUT)
