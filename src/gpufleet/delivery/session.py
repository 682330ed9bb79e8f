"""HTTP client session: keep-alive connections and bounded reading of responses."""

import os
import ssl
import urllib.request
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from gpufleet import __version__
from gpufleet.config.tls import is_loopback

REQUEST_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
"""Exceptions of a request that got no response; `describe_error` formats them."""


class Session:
    """A client session of one URL that keeps a few connections open while used as a context manager."""

    def __init__(
        self, url: str, *, name: str, timeout_seconds: float, connections: int = 1, tls: ssl.SSLContext | None = None
    ) -> None:
        """Set the options of every request.

        Args:
            url: the complete URL. The proxy for it is that of the environment.
            name: of the client, sent as User-Agent.
            timeout_seconds: limit on a whole request.
            connections: maximum number of concurrent connections.
            tls: trusted authorities and client certificate; the system's authorities if None.
        """
        self.url = url
        self._name = name
        self._timeout = timeout_seconds
        self._connections = connections
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The underlying aiohttp session, open inside the context only."""
        assert self._session is not None, "used as a context"
        return self._session

    async def __aenter__(self) -> Self:
        """Open the session; connections are made on demand."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"User-Agent": f"{self._name}/{__version__}"},
            connector=aiohttp.TCPConnector(limit=self._connections, ssl=self._tls or True),
            proxy=environment_proxy(self.url),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.session.close()
        self._session = None


def environment_proxy(url: str) -> str | None:
    """Return the proxy for a URL by `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, or None. Loopback needs no proxy."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    with_port = host if ":" in host else parts.netloc  # the module takes the end of an IPv6 address for a port
    if is_loopback(host) or urllib.request.proxy_bypass(with_port):
        return None
    return urllib.request.getproxies().get(parts.scheme)


async def read_prefix(answer: aiohttp.ClientResponse, bound: int) -> bytes:
    """Read a response body up to its end or `bound` bytes."""
    content = b""
    while len(content) < bound:
        chunk = await answer.content.read(bound - len(content))
        if not chunk:
            break
        content += chunk
    return content


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def cause_of(error: BaseException) -> str:
    """Return the type of an exception and its system error, without text from the other side and without the URL."""
    name = type(error).__name__
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError | aiohttp.ClientSSLError):
        return name
    return f"{name}: {os.strerror(error.errno)}" if error.errno is not None and error.errno > 0 else name
