"""HTTP server for ASGI applications, shared by agent and hub."""

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
from gpufleet.runtime import supervise
from gpufleet.web.connections import Connections, ConnectionSlot
from gpufleet.web.protocol import HEAD_SECONDS, BoundedProtocol, ProtocolLimits, RateLimitFilter
from gpufleet.web.tls import ServerTls

CLOSE_SECONDS = 5.0
"""Timeout of the TLS shutdown of a connection."""

BACKLOG = 1024

FILES_SHARE = 2
"""Connections use at most 1/`FILES_SHARE` of the process's descriptor limit."""

ACCEPT_RESTART_SECONDS = 1.0
"""Delay before accepting is restarted after a crash; short, because no new client is served meanwhile."""


class _Server(uvicorn.Server):
    """Uvicorn server with bounded connections, and without signal handlers, which the command installs."""

    def __init__(self, config: uvicorn.Config, connections: Connections, limits: ProtocolLimits) -> None:
        super().__init__(config)
        self._ours = connections
        self._limits = limits
        self._accepting: list[asyncio.Task[None]] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on the sockets."""
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
            accepting = supervise(accept, "accepting connections", restart_seconds=ACCEPT_RESTART_SECONDS)
            self._accepting.append(asyncio.create_task(accepting, name="accept"))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and finish requests in progress."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def _protocol(self, slot: ConnectionSlot) -> BoundedProtocol:
        return BoundedProtocol(
            slot, self._limits, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
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
    """Serve while the context is open; yields the port.

    Args:
        app: the ASGI application.
        host: address or name to bind.
        port: TCP port; 0 lets the kernel choose.
        connections: maximum number of connections, at most half of the process's descriptor limit. See `Connections`.
        stop_seconds: how long stopping waits for requests in progress.
        body_seconds: timeout of a request body; the connection is then closed.
        tls: server certificate; None means plain HTTP.

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
        config.ssl = tls.context  # uvicorn's own option takes files and never reloads them
        reloading = asyncio.create_task(supervise(tls.run, "certificate reload"), name="tls")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = _Server(
        config,
        Connections(max(1, min(connections, files // FILES_SHARE))),
        ProtocolLimits(body_seconds=body_seconds, logger=_sparse_logger()),
    )
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    try:
        # Connections wait in the listen queue until the server accepts them.
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
    """Return the rate-limited logger for messages about clients."""
    logger = logging.getLogger("gpufleet.web.http")
    logger.setLevel(logging.WARNING)
    if not logger.filters:
        logger.addFilter(RateLimitFilter(time.monotonic))
    return logger


def _bind(host: str, port: int) -> socket.socket:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        hint = "; is gpufleet already running here?" if error.errno == errno.EADDRINUSE else ""
        raise GpufleetError(f"cannot listen on {where}: {reason}{hint}") from error
    sock.setblocking(False)
    # Connections inherit it. asyncio sets it only on its own sockets. Without it the body of a response waits 40 ms
    # for the client to acknowledge the head.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
