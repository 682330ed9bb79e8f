"""The socket and the HTTP server in front of an ASGI application; agent and hub share it."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Generator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpufleet.model.errors import GpufleetError
from gpufleet.web.tls import ServerTls

HEAD_BYTES = 16 << 10
"""A request line with its headers may not be longer: the connection is closed."""

HEAD_SECONDS = 15.0
"""A connection that does not end its TLS handshake, or send a whole head, in this time is closed."""

CLOSE_SECONDS = 5.0
"""How long a TLS connection that is closed may take to say so."""

BACKLOG = 1024

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class _BoundedProtocol(HttpToolsProtocol):
    """uvicorn's fast parser, with the bounds on a request's head that it lacks."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes = 0
        self._between, self._in_head = True, False
        self._head_timer: asyncio.TimerHandle | None = None
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._between or self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between, self._in_head = False, True
        self._begin_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._end_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def _begin_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _end_head(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Server(uvicorn.Server):
    """uvicorn without its hold on the process's signals: those belong to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, with the bound on a TLS handshake that it lacks."""
        await self.lifespan.startup()
        loop, secure = asyncio.get_running_loop(), self.config.ssl is not None
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=sock,
                backlog=BACKLOG,
                ssl=self.config.ssl,
                ssl_handshake_timeout=HEAD_SECONDS if secure else None,
                ssl_shutdown_timeout=CLOSE_SECONDS if secure else None,
            )
            for sock in sockets or ()
        ]
        self.started = True

    def _protocol(self) -> _BoundedProtocol:
        return _BoundedProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


@contextlib.asynccontextmanager
async def serve(
    app: Any, host: str, port: int, *, concurrent: int, stop_seconds: int, tls: ServerTls | None = None
) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port, which the kernel chose where `port` is 0.

    Args:
        app: the ASGI application.
        host: address or name to bind.
        port: TCP port.
        concurrent: requests and open connections at once; beyond it the answer is 503.
        stop_seconds: how long stopping waits for answers under way.
        tls: the certificate to show; None means plain HTTP.

    Raises:
        GpufleetError: if the address cannot be bound.
    """
    sock = _bind(host, port)
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
        limit_concurrency=concurrent,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=stop_seconds,
    )
    config.load()
    reloading: asyncio.Task[None] | None = None
    if tls is not None:
        config.ssl = tls.context  # the server's own way to one takes files, and keeps them for ever
        reloading = asyncio.create_task(tls.run(), name="tls")
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    try:
        # Connections queue at the socket until the server takes them.
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        sock.close()
        if reloading is not None:
            reloading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reloading


def _bind(host: str, port: int) -> socket.socket:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        taken = "; does gpufleet run here already?" if error.errno == errno.EADDRINUSE else ""
        raise GpufleetError(f"cannot listen on {where}: {reason}{taken}") from error
    sock.setblocking(False)
    # Connections inherit it. asyncio sets it for sockets that it makes itself; without it the body of an answer waits
    # for the client to acknowledge its head: 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
