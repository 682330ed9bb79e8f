"""Serves an `EngineState` over the host engine's protocol, for readers and for people who try one.

Layouts are written down here a second time, on purpose: a mistake in the reader's copy shows.
"""

import asyncio
import contextlib
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpufleet.simulate.dcgm.state import (
    COMPUTE_INSTANCE,
    GPU,
    GPU_INSTANCE,
    GPU_LOST,
    NO_DATA,
    NOT_SUPPORTED,
    NOT_WATCHED,
    PROFILING,
    EngineState,
    Fault,
    Told,
)

MAGIC, COMMAND, NOTIFY = 0xADBCBCAD, 0x300, 0x500
VERSION_MISMATCH, FUNCTION_NOT_FOUND, BAD_PARAMETER, INSUFFICIENT_SIZE = -12, -20, -1, -31
ALL_GPUS = 0x7FFF_FFFF
MAX_BODY = 4_194_612

SIZES = {
    10: (0x0100021C, 540),
    14: (0x02001028, 4136),
    50: (0x01011F24, 73508),
    9: (0x01000020, 32),
    11: (0x01000430, 1072),
    35: (0x01000028, 40),
    13: (0x01000020, 32),
    38: (0x01000230, 560),
    39: (0x01000230, 560),
    29: (0x01000038, 56),
    30: (0x01000038, 56),
    25: (0x01000020, 32),
    54: (0x023FE048, 72),
    22: (0x01004334, 820),
    52: (0x023FE334, 820),
    63: (0x03400134, 8500),
    79: (0x04400000, 8500),
}
"""Command to its struct's version and the bytes of it that a request carries."""

ROOM = {22: 16384, 52: 4_186_112, 63: 4_186_112, 79: 4_185_804}
"""Command of latest values to the bytes of its buffer."""


@dataclass
class _Connection:
    """What one client set up; gone with its connection."""

    groups: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    fields: dict[int, list[int]] = field(default_factory=dict)
    watched: set[tuple[int, int, int]] = field(default_factory=set)
    next_id: int = 5
    replies: int = 0


class SimulatedEngine:
    """Answers any number of connections from one state, which may change while it runs.

    Attributes:
        asked: every command number that came, in order.
        connections: how many there were.
    """

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self.asked: list[int] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends; fits asyncio's servers."""
        self.connections += 1
        connection = _Connection()
        try:
            while True:
                magic, request, length, kind, _ = struct.unpack("<IIiii", await reader.readexactly(20))
                if magic != MAGIC or not 24 <= length <= MAX_BODY:
                    break
                body = await reader.readexactly(length)
                if kind == COMMAND and struct.unpack_from("<I", body)[0] == length:
                    await self._reply(connection, writer, request, body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client hung up, or a fault did
        finally:
            writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _reply(self, connection: _Connection, writer: asyncio.StreamWriter, request: int, body: bytes) -> None:
        number = struct.unpack_from("<I", body, 8)[0]
        self.asked.append(number)
        status, answer = self._answer(connection, number, body)
        connection.replies += 1
        faults = self.state.faults if connection.replies > self.state.skip_replies else frozenset()
        frame = struct.pack("<IIiii", MAGIC, request, len(answer), COMMAND, status) + answer
        if Fault.NO_REPLY in faults:
            return
        if Fault.WRONG_MAGIC in faults:
            frame = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        if Fault.LONG_BODY in faults:
            frame = struct.pack("<IIiii", MAGIC, request, 2**31 - 1, COMMAND, 0)
        if Fault.SHORT_BODY in faults:
            frame = struct.pack("<IIiii", MAGIC, request, 30, COMMAND, 0) + answer[:30]
        if Fault.REORDER in faults:
            frame = struct.pack("<IIiii", MAGIC, request + 1000, 24, COMMAND, 0) + answer[:24] + frame
        if Fault.NOTIFY in faults:
            frame = (struct.pack("<IIiii", MAGIC, 0, 8, NOTIFY, 0) + b"\0" * 8) * 3 + frame
        if Fault.HANG_UP in faults:
            writer.write(frame[: len(frame) // 2])
            raise ConnectionResetError
        if Fault.TRICKLE in faults:
            for at in range(len(frame)):
                writer.write(frame[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0)
            return
        while Fault.FLOOD in faults:
            writer.write(struct.pack("<IIiii", MAGIC, 0, 8, NOTIFY, 0) + b"\0" * 8)
            await writer.drain()
        writer.write(frame)
        await writer.drain()

    def _answer(self, connection: _Connection, number: int, body: bytes) -> tuple[int, bytes]:
        """Return frame status and body."""
        if number not in SIZES or (number in ROOM and number not in self.state.forms):
            return FUNCTION_NOT_FOUND, body
        version, size = SIZES[number]
        if struct.unpack_from("<I", body, 20)[0] != version:
            return VERSION_MISMATCH, body
        if Fault.VERSION_MISMATCH in self.state.faults and number in ROOM:
            return VERSION_MISMATCH, body.ljust(size + ROOM[number], b"\0")
        out = bytearray(body[:size].ljust(size, b"\0"))
        if number == 10:
            text = f"version:{self.state.version};arch:x86_64;buildtype:Release;commit:0"
            struct.pack_into("<512s", out, 28, text.encode())
        elif number == 14:
            self._entities(out)
        elif number == 50:
            self._hierarchy(out)
        elif number == 9:
            gpu = struct.unpack_from("<I", out, 24)[0]
            lost = gpu not in self.state.gpus or GPU_LOST in self.state.gpus[gpu].statuses.values()
            struct.pack_into("<I", out, 28, 4 if lost else 1)
        elif number in (11, 38):
            self._create(connection, number, out)
        elif number == 35:
            group, *entity = struct.unpack_from("<III", out, 24)
            struct.pack_into("<i", out, 36, 0 if group in connection.groups else BAD_PARAMETER)
            connection.groups.get(group, []).append((entity[0], entity[1]))
        elif number in (29, 30):
            self._watch(connection, number, out)
        elif number == 54:
            return 0, self._history(out)
        elif number in ROOM:
            return 0, self._latest(connection, number, out)
        return 0, bytes(out)

    def _entities(self, out: bytearray) -> None:
        group = struct.unpack_from("<I", out, 24)[0]
        ids = list(self.state.gpus) if group == GPU else list(self._instances()) if group == GPU_INSTANCE else []
        struct.pack_into(f"<{len(ids)}I", out, 28, *ids)
        struct.pack_into("<I", out, 4124, 5000 if Fault.LYING_COUNT in self.state.faults else len(ids))

    def _instances(self) -> dict[int, tuple[int, int, int]]:
        """Return GPU instance id of DCGM to its GPU, number on that GPU and slices."""
        found: dict[int, tuple[int, int, int]] = {}
        for gpu, device in self.state.gpus.items():
            for index, (_, slices) in enumerate(device.instances):
                found[len(found)] = (gpu, index + 1, slices)
        return found

    def _hierarchy(self, out: bytearray) -> None:
        entry, at, count = struct.Struct("<IIII128sIIIII"), 32, 0
        for entity, (gpu, number, slices) in self._instances().items():
            uuid = str(self.state.gpus[gpu].values.get(54, "")).encode()
            entry.pack_into(out, at, GPU_INSTANCE, entity, GPU, gpu, uuid, gpu, number, 0xFFFF_FFFF, 19, slices)
            own = (COMPUTE_INSTANCE, entity, GPU_INSTANCE, entity, uuid, gpu, number, 0, 0, slices)
            entry.pack_into(out, at + entry.size, *own)
            at += 2 * entry.size
            count += 2
        struct.pack_into("<I", out, 28, 5000 if Fault.LYING_COUNT in self.state.faults else count)

    def _create(self, connection: _Connection, number: int, out: bytearray) -> None:
        connection.next_id += 1
        if number == 11:
            connection.groups[connection.next_id] = []
            struct.pack_into("<Q", out, 1056, connection.next_id)
            return
        (count,) = struct.unpack_from("<I", out, 28)
        ids = list(struct.unpack_from(f"<{min(count, 128)}H", out, 296))
        if self.state.unknown & set(ids):
            struct.pack_into("<i", out, 552, BAD_PARAMETER)
            return
        connection.fields[connection.next_id] = ids
        struct.pack_into("<Q", out, 32, connection.next_id)

    def _watch(self, connection: _Connection, number: int, out: bytearray) -> None:
        group, fields = struct.unpack_from("<II", out, 24)
        entities = [(GPU, gpu) for gpu in self.state.gpus] if group == ALL_GPUS else connection.groups.get(group)
        if entities is None or fields not in connection.fields:
            struct.pack_into("<i", out, 52, BAD_PARAMETER)
            return
        pairs = {(kind, id_, one) for kind, id_ in entities for one in connection.fields[fields]}
        connection.watched = connection.watched | pairs if number == 29 else connection.watched - pairs

    def _latest(self, connection: _Connection, number: int, out: bytearray) -> bytes:
        most = 64 if number in (22, 52) else 1024
        after = 28 + 8 * most
        count = struct.unpack_from("<I", out, after)[0]
        flat = struct.unpack_from(f"<{2 * min(count, most)}I", out, 28)
        entities = list(zip(flat[::2], flat[1::2], strict=True))
        field_count, flags = struct.unpack_from("<II", out, after + 264)
        fields = struct.unpack_from(f"<{min(field_count, 128)}H", out, after + 8)
        now = time.time_ns() // 1000 + self.state.clock_ahead
        records = b"".join(
            self._record(kind, id_, one, now, live=bool(flags & 1), watched=connection.watched)
            for kind, id_ in entities
            for one in fields
        )
        if len(records) > ROOM[number]:
            struct.pack_into("<i", out, len(out) - 8, INSUFFICIENT_SIZE)
            return bytes(out)
        struct.pack_into("<I", out, len(out) - 4, len(records))
        return bytes(out) + self._spoiled(records)

    def _record(
        self, kind: int, id_: int, one: int, now: int, *, live: bool, watched: Iterable[tuple[int, int, int]]
    ) -> bytes:
        status, told = self._value(kind, id_, one)
        if live and one in PROFILING:
            status, told = -32, 0
        elif not live and (kind, id_, one) not in watched:
            status, told = NOT_WATCHED, 0
        return record(kind, id_, one, status, now, told)

    def _value(self, kind: int, id_: int, one: int) -> tuple[int, Told]:
        if kind == GPU:
            device = self.state.gpus.get(id_)
            if device is None:
                return GPU_LOST, 0
            if one in device.statuses:
                return device.statuses[one], 0
            return (0, device.values[one]) if one in device.values else (NO_DATA, 0)
        values = self.state.instance_values.get(id_, {}) if kind == GPU_INSTANCE else {}
        return (0, values[one]) if one in values else (NOT_SUPPORTED, 0)

    def _history(self, out: bytearray) -> bytes:
        kind, id_, one = struct.unpack_from("<III", out, 24)
        since = struct.unpack_from("<q", out, 40)[0]
        (most,) = struct.unpack_from("<i", out, 60)
        happened = self.state.xids.get(id_, []) if kind == GPU and one == 230 else []
        found = [record(kind, id_, one, 0, at, code) for at, code in happened if at >= since][:most]
        struct.pack_into("<iiI", out, 60, len(found), 0 if found else NO_DATA, sum(map(len, found)))
        return bytes(out) + self._spoiled(b"".join(found))

    def _spoiled(self, records: bytes) -> bytes:
        if Fault.ZERO_RECORD in self.state.faults:
            return b"\0\0" + records[2:]
        return b"\xff\xff" + records[2:] if Fault.LONG_RECORD in self.state.faults else records


def record(kind: int, id_: int, one: int, status: int, at: int, told: Told) -> bytes:
    """Return one value record; `at` in microseconds."""
    if isinstance(told, str):
        letter, payload = b"s", told.encode() + b"\0"
    elif isinstance(told, float):
        letter, payload = b"d", struct.pack("<d", told)
    else:
        letter, payload = b"i", struct.pack("<q", told)
    return struct.pack("<HBcbBHqII", 24 + len(payload), 1, letter, status, kind, one, at, id_, 0) + payload
