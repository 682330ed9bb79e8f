"""The socket and the HTTP server in front of an ASGI application; agent and hub share it."""

import asyncio
import contextlib
import errno
import functools
import logging
import resource
import socket
import time
from collections.abc import AsyncIterator, Generator
from typing import Any

import uvicorn

from gpufleet.model.errors import GpufleetError
from gpufleet.runtime import keep
from gpufleet.web.connections import Connections, Place
from gpufleet.web.protocol import HEAD_SECONDS, BoundedProtocol, Bounds, Sparse
from gpufleet.web.tls import ServerTls

CLOSE_SECONDS = 5.0
"""How long a TLS connection that is closed may take to say so."""

BACKLOG = 1024

FILES_SHARE = 2
"""Connections take no more than this part of the descriptors that the process may have: others need some too."""

ACCEPT_AGAIN_SECONDS = 1.0
"""Nobody is served until accepting begins again."""


class _Server(uvicorn.Server):
    """uvicorn without its hold on the process's signals, which belong to the command, and with our connections."""

    def __init__(self, config: uvicorn.Config, connections: Connections, bounds: Bounds) -> None:
        super().__init__(config)
        self._ours = connections
        self._bounds = bounds
        self._accepting: list[asyncio.Task[None]] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections at the sockets."""
        await self.lifespan.startup()
        self.servers = []
        for sock in sockets or ():
            accept = functools.partial(
                self._ours.accept,
                sock,
                self._protocol,
                tls=self.config.ssl,
                handshake_seconds=HEAD_SECONDS,
                close_seconds=CLOSE_SECONDS,
            )
            accepting = keep(accept, "accepting connections", again_seconds=ACCEPT_AGAIN_SECONDS)
            self._accepting.append(asyncio.create_task(accepting, name="accept"))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let what is being answered end."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def _protocol(self, place: Place) -> BoundedProtocol:
        return BoundedProtocol(
            place, self._bounds, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


@contextlib.asynccontextmanager
async def serve(
    app: Any,
    host: str,
    port: int,
    *,
    connections: int,
    stop_seconds: int,
    body_seconds: float = HEAD_SECONDS,
    tls: ServerTls | None = None,
) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port, which the kernel chose where `port` is 0.

    Args:
        app: the ASGI application.
        host: address or name to bind.
        port: TCP port.
        connections: at once; fewer where the process may not open twice as many files. Beyond it, those that ask
            nothing are closed, and while none does, who comes waits.
        stop_seconds: how long stopping waits for answers under way.
        body_seconds: a body that takes longer to arrive ends its connection.
        tls: the certificate to show; None means plain HTTP.

    Raises:
        GpufleetError: if the address cannot be bound.
    """
    sock = _bind(host, port)
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("x-content-type-options", "nosniff")],
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=stop_seconds,
    )
    config.load()
    reloading: asyncio.Task[None] | None = None
    if tls is not None:
        config.ssl = tls.context  # the server's own way to one takes files, and keeps them for ever
        reloading = asyncio.create_task(keep(tls.run, "looking for another certificate"), name="tls")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = _Server(
        config,
        Connections(max(1, min(connections, files // FILES_SHARE))),
        Bounds(body_seconds=body_seconds, logger=_sparse_logger()),
    )
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


def _sparse_logger() -> logging.Logger:
    """Return what takes words about clients, who cannot make it say much."""
    logger = logging.getLogger("gpufleet.web.http")
    logger.setLevel(logging.WARNING)
    if not logger.filters:
        logger.addFilter(Sparse(time.monotonic))
    return logger


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
