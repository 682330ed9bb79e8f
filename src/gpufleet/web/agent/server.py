"""The socket and the server in front of an ASGI application."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator
from typing import Any

import uvicorn

from gpufleet.model.errors import GpufleetError

CONCURRENT = 64
"""Requests and open connections at once; beyond it the answer is 503."""

HEADER_BYTES = 16 << 10
"""A request line with its headers may not be longer."""

STOP_SECONDS = 2
"""How long stopping waits for answers under way."""


class _Server(uvicorn.Server):
    """uvicorn without its hold on the process's signals: those belong to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket.

    Raises:
        GpufleetError: if the address is taken or not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise GpufleetError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise GpufleetError(f"cannot listen on {host}:{port}: {error.strerror}; is another agent running?") from error
    sock.setblocking(False)
    return sock


@contextlib.asynccontextmanager
async def serve(app: Any, host: str, port: int) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port, which the kernel chose where `port` is 0.

    Raises:
        GpufleetError: if the address cannot be bound.
    """
    sock = bind(host, port)
    config = uvicorn.Config(
        app,
        http="h11",  # the parser of uvicorn's two that bounds the request head
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=CONCURRENT,
        h11_max_incomplete_event_size=HEADER_BYTES,
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
        with contextlib.suppress(asyncio.CancelledError):
            await task
        sock.close()
