"""Who makes room, and who is given up, on connections of an application that answers at length."""

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
"""Bytes of an answer: more than the system keeps of it."""


async def long_answer(_: Any, __: Any, send: Any) -> None:
    headers = [(b"content-length", str(LONG).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(LONG)})


class Served:
    def __init__(self, port: int, state: ServerState) -> None:
        self.port = port
        self.state = state

    async def ask(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return reader, writer


@contextlib.asynccontextmanager
async def serving(limit: int, stall_seconds: float, answer: Any = long_answer) -> AsyncIterator[Served]:
    config = uvicorn.Config(answer, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    bounds = ProtocolLimits(body_seconds=5, logger=logging.getLogger("test"), stall_seconds=stall_seconds)
    state = ServerState()

    def protocol(place: ConnectionSlot) -> BoundedProtocol:
        return BoundedProtocol(place, bounds, config=config, server_state=state, app_state={})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        accepting = Connections(limit).accept(listener, protocol, tls=None, handshake_seconds=5, close_seconds=5)
        task = asyncio.create_task(accepting)
        yield Served(listener.getsockname()[1], state)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        for connection in list(state.connections):
            connection.transport.abort()


async def test_an_answer_that_nobody_takes_is_given_up() -> None:
    async with serving(8, stall_seconds=0.2) as served:
        reader, writer = await served.ask()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")  # and nothing after it

        async def given_up() -> bool:
            return not served.state.connections

        await wait_until_async(given_up, what="the connection to be given up")
        writer.close()


async def test_an_answer_that_is_taken_is_given_whole() -> None:
    async with serving(8, stall_seconds=5) as served:
        reader, writer = await served.ask()
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(LONG)) == LONG
        writer.close()


async def test_nothing_is_awaited_of_who_sent_all_of_it_in_parts() -> None:
    begun, whole, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def waits(_: Any, receive: Any, send: Any) -> None:
        begun.set()
        while (await receive()).get("more_body"):
            pass
        whole.set()
        await answered.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving(8, stall_seconds=5, answer=waits) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
        await begun.wait()
        writer.write(b"body")
        await whole.wait()
        (connection,) = served.state.connections
        assert connection._deadline is None  # type: ignore[union-attr]  # or a slow answer would be cut off
        answered.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 204")
        writer.close()


async def test_new_connection_waits_while_all_are_busy() -> None:
    async with serving(2, stall_seconds=60) as served:
        busy = [await served.ask() for _ in range(2)]
        for reader, _ in busy:
            await reader.readline()
        answering = set(served.state.connections)
        reader, writer = await served.ask()
        line = asyncio.create_task(reader.readline())
        for _ in range(100):  # turns of the loop in which it could be accepted
            await asyncio.sleep(0)
        assert served.state.connections == answering
        for _, other in busy:
            other.transport.abort()
        assert (await asyncio.wait_for(line, 20)).startswith(b"HTTP/1.1 200")
        writer.transport.abort()


@pytest.mark.parametrize(
    ("addresses", "newcomer", "goes"),
    [
        ("a", "a", 0),  # there is but one
        ("aab", "a", 0),  # the oldest of all is its own
        ("baaa", "a", 1),  # it has more than its share: its own oldest
        ("baaa", "b", 0),  # it has not: the oldest of all
        ("baaa", "c", 0),
        ("abab", "b", 0),
    ],
)
def test_who_has_more_than_its_share_makes_room_for_its_own(addresses: str, newcomer: str, goes: int) -> None:
    connections = Connections(8)
    places = [ConnectionSlot(connections, address) for address in addresses]
    waiting = EvictionQueue()
    for place in places:
        waiting.add(place)
    assert waiting.oldest_for(newcomer) is places[goes]
    for place in places:
        waiting.discard(place)
        waiting.discard(place)
    assert len(waiting) == 0
