"""Where a simulated engine listens."""

import asyncio
import socket

from gpufleet.simulate.dcgm.engine import SimulatedEngine
from gpufleet.simulate.dcgm.state import EngineState

FORMS = "tcp://HOST:PORT, unix:///PATH or vsock://CID:PORT"
BACKLOG = 64
"""A vsock listener whose backlog is full resets connections, as one that is not there does."""


async def listen(address: str, state: EngineState) -> tuple[asyncio.Server, str]:
    """Serve a state; return the server and its address, with the port that the kernel chose where that was 0.

    Raises:
        ValueError: if the address is none.
        OSError: if nothing can listen there.
    """
    engine = SimulatedEngine(state)
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if scheme == "unix" and place.startswith("/"):
        return await asyncio.start_unix_server(engine.serve, place), address
    if scheme == "tcp" and host and port.isdigit() and int(port) < 65536:
        server = await asyncio.start_server(engine.serve, host, int(port))
        name = server.sockets[0].getsockname()
        return server, f"tcp://{name[0]}:{name[1]}"
    if scheme == "vsock" and host.isdigit() and port.isdigit():
        listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        listener.bind((int(host), int(port)))
        return await asyncio.start_server(engine.serve, sock=listener, backlog=BACKLOG), address
    raise ValueError(f"{address!r} is no address to listen at: write {FORMS}")
