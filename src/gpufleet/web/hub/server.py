"""The socket and the server in front of the hub's application."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpufleet.model.errors import GpufleetError

CONCURRENT = 4096
"""Requests and open connections at once; beyond it the answer is 503."""

HEAD_BYTES = 16 << 10
"""A request line with its headers may not be longer: the connection is closed."""

HEAD_SECONDS = 15.0
"""A connection that does not send a whole head in this time is closed."""

STOP_SECONDS = 5
"""How long stopping waits for answers under way."""

BACKLOG = 1024


class _BoundedProtocol(HttpToolsProtocol):
    """uvicorn's fast parser, with the bounds on a request's head that it lacks."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = self.loop.call_later(HEAD_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        self._head_is_done()
        super().on_headers_complete()

    def _head_is_done(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Server(uvicorn.Server):
    """uvicorn without its hold on the process's signals: those belong to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone."""
        yield


@contextlib.asynccontextmanager
async def serve(app: Any, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port, which the kernel chose where `port` is 0.

    Raises:
        GpufleetError: if the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise GpufleetError(f"cannot listen on {host}:{port}: {error.strerror}; is another hub running?") from error
    config = uvicorn.Config(
        app,
        http=_BoundedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONCURRENT,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    try:
        # Connections queue at the socket until the server takes them.
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        sock.close()
