"""TCP proxy between two processes that can cut, stall, slow down or half close connections, or lose responses.

All links of a run share one event loop in a separate thread. A link can also record its traffic.
"""

import asyncio
import enum
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any

CHUNK = 16 << 10
SLOW_CHUNK, SLOW_SECONDS = 1 << 10, 0.03
_RESET = struct.pack("ii", 1, 0)


class Mode(enum.Enum):
    """Behaviour of a link towards its connections."""

    PASS = "pass"
    CUT = "cut"  # open and new connections are reset
    STALL = "stall"  # no data is passed in either direction; it is delivered afterwards
    SLOW = "slow"  # about 34 KB/s in each direction
    HALF_CLOSE = "half-close"  # the request is delivered; the client gets EOF instead of a response
    LOSE_ANSWERS = "lose-answers"  # the request is delivered; the connection is reset at the response


class Exchange:
    """Recorded traffic of one connection: the bytes of the client and of the server."""

    def __init__(self) -> None:
        self.request = bytearray()
        self.response = bytearray()


class Link:
    """Proxy of one server, created by `Network.link`."""

    def __init__(self, target_port: int, record: bool) -> None:
        self.port = 0
        self.mode = Mode.PASS
        self.exchanges: list[Exchange] = []
        self._target = target_port
        self._record = record
        self._passing = asyncio.Event()
        self._passing.set()
        self._connections: set[asyncio.StreamWriter] = set()

    async def listen(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def set_mode(self, mode: Mode) -> None:
        """Change the mode. Runs on the event loop."""
        self.mode = mode
        (self._passing.clear if mode is Mode.STALL else self._passing.set)()
        if mode is Mode.CUT:
            for writer in tuple(self._connections):
                _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self.mode is Mode.CUT:
            _reset(client)
            return
        exchange = Exchange()
        if self._record:
            self.exchanges.append(exchange)
        server: asyncio.StreamWriter | None = None
        self._connections.add(client)
        try:
            from_server, server = await asyncio.open_connection("127.0.0.1", self._target)
            self._connections.add(server)
            async with asyncio.TaskGroup() as group:
                back = group.create_task(self._forward_response(from_server, client, exchange))
                await self._forward_request(reader, server, exchange)
                await asyncio.wait([back], timeout=5)
                back.cancel()
        except (OSError, ExceptionGroup):
            _reset(client)
        finally:
            for writer in (client, server):
                if writer is not None:
                    self._connections.discard(writer)
                    writer.close()

    async def _forward_request(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, exchange: Exchange
    ) -> None:
        while data := await reader.read(SLOW_CHUNK if self.mode is Mode.SLOW else CHUNK):
            await self._delay()
            if self._record:
                exchange.request += data
            server.write(data)
            await server.drain()
        if server.can_write_eof():
            server.write_eof()

    async def _forward_response(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, exchange: Exchange
    ) -> None:
        while data := await reader.read(SLOW_CHUNK if self.mode is Mode.SLOW else CHUNK):
            if self._record:
                exchange.response += data
            await self._delay()
            if self.mode is Mode.LOSE_ANSWERS:
                _reset(client)
            elif self.mode is Mode.HALF_CLOSE:
                if client.can_write_eof():
                    client.write_eof()
            else:
                client.write(data)
                await client.drain()
        client.close()

    async def _delay(self) -> None:
        await self._passing.wait()
        if self.mode is Mode.SLOW:
            await asyncio.sleep(SLOW_SECONDS)


class Network:
    """The links of a run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, target_port: int, *, record: bool = False) -> Link:
        """Open a proxy of a loopback port."""
        link = Link(target_port, record)
        self._servers.append(self._do(link.listen()))
        return link

    def set_mode(self, link: Link, mode: Mode) -> None:
        """Change the mode of a link."""
        self._call(lambda: link.set_mode(mode))

    def close(self) -> None:
        """Break every connection and end the thread."""
        for server in self._servers:
            self._call(server.close)
        self._do(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def _call(self, function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        self._do(call())

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
