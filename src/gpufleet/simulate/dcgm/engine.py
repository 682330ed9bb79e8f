"""Server of an `EngineState` over the host engine's protocol, for tests of readers and for demonstrations."""

import asyncio
import contextlib
import socket
import struct

from gpufleet.simulate.dcgm.answers import ClientState, CommandHandler
from gpufleet.simulate.dcgm.state import EngineFault, EngineState

MAGIC, COMMAND, NOTIFY = 0xADBCBCAD, 0x300, 0x500
MAX_BODY = 4_194_612
DRIP_SECONDS = 0.02


class SimulatedEngine:
    """Serves any number of connections from a state, which may change at any time.

    Attributes:
        state: content and faults.
        commands: number of every received command, in order.
        connections: number of connections so far.
        held: groups and watches of each open connection.
    """

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self.commands: list[int] = []
        self.connections = 0
        self.held: list[ClientState] = []
        self._handler = CommandHandler(state)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends; a callback for asyncio's servers."""
        self.connections += 1
        connection = ClientState()
        self.held.append(connection)
        try:
            while True:
                magic, request, length, kind, _ = struct.unpack("<IIiii", await reader.readexactly(20))
                if magic != MAGIC or not 24 <= length <= MAX_BODY:
                    break
                body = await reader.readexactly(length)
                if kind == COMMAND and struct.unpack_from("<I", body)[0] == length:
                    await self._reply(connection, writer, request, body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # closed by the client, or by a fault
        finally:
            self.held.remove(connection)
            writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _reply(self, connection: ClientState, writer: asyncio.StreamWriter, request: int, body: bytes) -> None:
        number = struct.unpack_from("<I", body, 8)[0]
        self.commands.append(number)
        connection.replies += 1
        faults = frozenset(self.state.faults) if connection.replies > self.state.skip_replies else frozenset()
        status, answer = self._handler.answer(connection, number, body, faults)
        if EngineFault.NO_REPLY in faults:
            return
        if EngineFault.OTHER_COMMAND in faults:
            answer = answer[:8] + struct.pack("<I", 999) + answer[12:]
        if EngineFault.WRONG_LENGTH in faults:
            answer = struct.pack("<I", len(answer) + 1000) + answer[4:]
        if EngineFault.HUGE in faults:
            answer = answer.ljust(MAX_BODY, b"\xff")
        frame = _framed(request, answer, faults, status)
        while EngineFault.FLOOD in faults:
            writer.write(struct.pack("<IIiii", MAGIC, 0, 8, NOTIFY, 0) + b"\0" * 8)
            await writer.drain()
        if EngineFault.HANG_UP in faults:
            writer.write(frame[: len(frame) // 2])
            raise ConnectionResetError
        if EngineFault.TRICKLE in faults or EngineFault.DRIP in faults:
            for at in range(len(frame)):
                writer.write(frame[at : at + 1])
                await writer.drain()
                await asyncio.sleep(DRIP_SECONDS if EngineFault.DRIP in faults else 0)
            return
        writer.write(frame)
        await writer.drain()


def _framed(request: int, answer: bytes, faults: frozenset[EngineFault], status: int) -> bytes:
    frame = struct.pack("<IIiii", MAGIC, request, len(answer), COMMAND, status) + answer
    if EngineFault.WRONG_MAGIC in faults:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"
    if EngineFault.LONG_BODY in faults:
        frame = struct.pack("<IIiii", MAGIC, request, 2**31 - 1, COMMAND, 0)
    if EngineFault.SHORT_BODY in faults:
        frame = struct.pack("<IIiii", MAGIC, request, 30, COMMAND, 0) + answer[:30]
    if EngineFault.REORDER in faults:
        frame = struct.pack("<IIiii", MAGIC, request + 1000, 24, COMMAND, 0) + answer[:24] + frame
    if EngineFault.NOTIFY in faults:
        frame = (struct.pack("<IIiii", MAGIC, 0, 8, NOTIFY, 0) + b"\0" * 8) * 3 + frame
    return frame


FORMS = "tcp://HOST:PORT, unix:///PATH or vsock://CID:PORT"
BACKLOG = 64
"""A vsock listener with a full backlog resets connections, as if there were no listener."""


async def listen(address: str, state: EngineState) -> tuple[asyncio.Server, str]:
    """Serve a state; return the server and its address, with the port chosen by the kernel if it was 0.

    Raises:
        ValueError: if the address is invalid.
        OSError: if the address cannot be bound.
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
    raise ValueError(f"{address!r} is not a listen address: use {FORMS}")
