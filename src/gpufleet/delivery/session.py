"""Kept connections to another system, and what is read of its answers."""

import ssl
from types import TracebackType
from typing import Self

import aiohttp

from gpufleet import __version__

NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)
"""What a request raises that has no answer; `words_of` says it."""


class Session:
    """A few kept connections while it is used as a context."""

    def __init__(
        self, *, name: str, timeout_seconds: float, connections: int = 1, tls: ssl.SSLContext | None = None
    ) -> None:
        """Take what every request has.

        Args:
            name: who asks, for the other system's logs.
            timeout_seconds: a request that takes longer has no answer.
            connections: at most so many at once.
            tls: decides whom to trust, and holds our own certificate; the system's authorities unless given.
        """
        self._name = name
        self._timeout = timeout_seconds
        self._connections = connections
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The library's own."""
        assert self._session is not None, "used as a context"
        return self._session

    async def __aenter__(self) -> Self:
        """Make ready to connect."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"User-Agent": f"{self._name}/{__version__}"},
            connector=aiohttp.TCPConnector(limit=self._connections, ssl=self._tls or True),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the connections."""
        await self.session.close()
        self._session = None


async def beginning_of(answer: aiohttp.ClientResponse, bound: int) -> bytes:
    """Read an answer to its end, or to so many bytes."""
    content = b""
    while len(content) < bound:
        chunk = await answer.content.read(bound - len(content))
        if not chunk:
            break
        content += chunk
    return content


def words_of(error: BaseException) -> str:
    """Say what one of `NO_ANSWER` is."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
