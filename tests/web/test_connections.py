"""Connections: stalled responses, waiting clients and eviction, with an application that sends large bodies."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gpufleet.web.connections import Connections, ConnectionSlot, EvictionQueue
from gpufleet.web.protocol import BoundedProtocol, ProtocolLimits
from tests.support.waiting import wait_until_async

LONG = 32 << 20
"""Response size in bytes: larger than the socket buffers."""


async def send_large_response(_: Any, __: Any, send: Any) -> None:
    headers = [(b"content-length", str(LONG).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(LONG)})


class Server:
    def __init__(self, port: int, state: ServerState) -> None:
        self.port = port
        self.state = state

    async def request(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return reader, writer


@contextlib.asynccontextmanager
async def serving(limit: int, stall_seconds: float, answer: Any = send_large_response) -> AsyncIterator[Server]:
    config = uvicorn.Config(answer, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    bounds = ProtocolLimits(body_seconds=5, logger=logging.getLogger("test"), stall_seconds=stall_seconds)
    state = ServerState()

    def protocol(slot: ConnectionSlot) -> BoundedProtocol:
        return BoundedProtocol(slot, bounds, config=config, server_state=state, app_state={})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        accepting = Connections(limit).accept(listener, protocol, tls=None, handshake_seconds=5, close_seconds=5)
        task = asyncio.create_task(accepting)
        yield Server(listener.getsockname()[1], state)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for connection in list(state.connections):
            connection.transport.abort()


async def test_response_that_is_not_read_is_aborted() -> None:
    async with serving(8, stall_seconds=0.2) as server:
        reader, writer = await server.request()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")  # the client reads no further

        async def closed() -> bool:
            return not server.state.connections

        await wait_until_async(closed, what="the connection to be closed")
        writer.close()


async def test_response_that_is_read_is_complete() -> None:
    async with serving(8, stall_seconds=5) as server:
        reader, writer = await server.request()
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(LONG)) == LONG
        writer.close()


async def test_request_sent_in_parts_has_no_deadline_once_complete() -> None:
    started, received, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def respond_late(_: Any, receive: Any, send: Any) -> None:
        started.set()
        while (await receive()).get("more_body"):
            pass
        received.set()
        await answered.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving(8, stall_seconds=5, answer=respond_late) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
        await started.wait()
        writer.write(b"body")
        await received.wait()
        (connection,) = server.state.connections
        assert connection._deadline is None  # type: ignore[union-attr]  # a deadline would abort a slow response
        answered.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 204")
        writer.close()


async def test_new_connection_waits_while_all_are_busy() -> None:
    async with serving(2, stall_seconds=60) as server:
        busy = [await server.request() for _ in range(2)]
        for reader, _ in busy:
            await reader.readline()
        answering = set(server.state.connections)
        reader, writer = await server.request()
        line = asyncio.create_task(reader.readline())
        for _ in range(100):  # event loop turns in which it could be accepted
            await asyncio.sleep(0)
        assert server.state.connections == answering
        for _, other in busy:
            other.transport.abort()
        assert (await asyncio.wait_for(line, 20)).startswith(b"HTTP/1.1 200")
        writer.transport.abort()


@pytest.mark.parametrize(
    ("addresses", "newcomer", "evicted"),
    [
        ("a", "a", 0),  # only one address
        ("aab", "a", 0),  # the oldest connection is the client's own
        ("baaa", "a", 1),  # above its share: its own oldest
        ("baaa", "b", 0),  # within its share: the oldest of all
        ("baaa", "c", 0),
        ("abab", "b", 0),
    ],
)
def test_client_above_its_share_evicts_its_own_oldest_connection(addresses: str, newcomer: str, evicted: int) -> None:
    connections = Connections(8)
    slots = [ConnectionSlot(connections, address) for address in addresses]
    queue = EvictionQueue()
    for slot in slots:
        queue.add(slot)
    assert queue.oldest_for(newcomer) is slots[evicted]
    for slot in slots:
        queue.discard(slot)
        queue.discard(slot)
    assert len(queue) == 0


async def test_connection_that_waits_at_the_end_of_accepting_is_closed() -> None:
    async with serving(1, stall_seconds=60) as server:
        busy, answered = await server.request()
        await busy.readline()
        reader, writer = await server.request()
        for _ in range(100):  # event loop turns in which it is accepted and waits for a place
            await asyncio.sleep(0)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    for one in (answered, writer):
        one.transport.abort()
    await asyncio.sleep(0)


async def test_connection_accepted_at_the_end_of_accepting_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        connections = Connections(8)
        accepting = connections.accept(
            listener, lambda _: asyncio.Protocol(), tls=None, handshake_seconds=5, close_seconds=5
        )
        task = asyncio.create_task(accepting)
        await asyncio.sleep(0)  # it waits for a connection
        with socket.create_connection(listener.getsockname()) as client:
            for _ in range(3):
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0)
            listener.close()
            client.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
