"""Replies of a simulated engine to each command, and their value records.

The struct layouts are written a second time here on purpose: a mistake in the reader's copy shows.
"""

import struct
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from gpufleet.simulate.dcgm.state import (
    COMPUTE_INSTANCE,
    GPU,
    GPU_INSTANCE,
    GPU_LOST,
    NO_DATA,
    NOT_SUPPORTED,
    NOT_WATCHED,
    UNKNOWN_FIELD,
    EngineFault,
    EngineState,
)
from gpufleet.simulate.dcgm.values import PROFILING, FieldValue


def encode_record(
    kind: int, id_: int, number: int, status: int, at: int, value: FieldValue, *, blob: bool = False
) -> bytes:
    """Return a value record of a field; `at` in microseconds."""
    if blob:
        letter, payload = b"b", b"\x00\xff" * 8
    elif isinstance(value, str):
        letter, payload = b"s", value.encode() + b"\0"
    elif isinstance(value, float):
        letter, payload = b"d", struct.pack("<d", value)
    else:
        letter, payload = b"i", struct.pack("<q", value)
    return struct.pack("<HBcbBHqII", 24 + len(payload), 1, letter, status, kind, number, at, id_, 0) + payload


def join_records(records: Sequence[bytes], faults: Collection[EngineFault]) -> bytes:
    """Join records, altered by the faults."""
    if EngineFault.PARTIAL in faults:
        records = records[::2]
    joined = b"".join(records)
    if EngineFault.ZERO_RECORD in faults:
        return b"\0\0" + joined[2:]
    if EngineFault.LONG_RECORD in faults:
        return b"\xff\xff" + joined[2:]
    if EngineFault.UNREQUESTED in faults:
        return joined + encode_record(1, 7, 155, 0, 1, 5.0) * 130_000
    return joined


VERSION_MISMATCH, FUNCTION_NOT_FOUND, BAD_PARAMETER, GENERIC, INSUFFICIENT_SIZE = -12, -20, -1, -3, -31
ALL_GPUS = 0x7FFF_FFFF
HOUR = 3_600_000_000

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
"""Command to the version of its struct and the struct's length in a request."""

BUFFER_BYTES = {22: 16384, 52: 4_186_112, 63: 4_186_112, 79: 4_185_804}
"""Command for latest values to the size of its buffer in bytes."""

_RESULTS = {11: 1064, 13: 28, 14: 4132, 29: 52, 30: 52, 35: 36, 38: 552, 39: 552, 50: 73504, 54: 64}


@dataclass
class ClientState:
    """Groups and watches of a client, until its connection ends."""

    groups: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    fields: dict[int, list[int]] = field(default_factory=dict)
    watched: dict[tuple[int, int], set[tuple[int, int, int]]] = field(default_factory=dict)
    next_id: int = 5
    replies: int = 0


class CommandHandler:
    """Replies to commands from a state, which may change at any time."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._frozen: dict[tuple[int, bytes], bytes] = {}

    def answer(
        self, connection: ClientState, number: int, body: bytes, faults: Iterable[EngineFault]
    ) -> tuple[int, bytes]:
        """Return frame status and body of the reply to a command."""
        faults = frozenset(faults)
        if number not in SIZES or (number in BUFFER_BYTES and number not in self.state.forms):
            return FUNCTION_NOT_FOUND, body
        version, size = SIZES[number]
        if struct.unpack_from("<I", body, 20)[0] != version:
            return VERSION_MISMATCH, body
        if EngineFault.VERSION_MISMATCH in faults and number in BUFFER_BYTES:
            return VERSION_MISMATCH, body.ljust(size + BUFFER_BYTES[number], b"\0")
        out = bytearray(body[:size].ljust(size, b"\0"))
        if EngineFault.ERROR in faults and (number in _RESULTS or number in BUFFER_BYTES):
            struct.pack_into("<i", out, _RESULTS.get(number, size - 8), GENERIC)
        elif number == 10:
            version_text = "9.0.0" if EngineFault.UNKNOWN_VERSION in faults else self.state.version
            text = f"version:{version_text};arch:x86_64;buildtype:Release;commit:0"
            struct.pack_into("<512s", out, 28, text.encode())
        elif number == 14:
            self._entities(out, faults)
        elif number == 50:
            self._hierarchy(out, faults)
        elif number == 9:
            gpu = struct.unpack_from("<I", out, 24)[0]
            lost = gpu not in self.state.gpus or GPU_LOST in self.state.gpus[gpu].statuses.values()
            struct.pack_into("<I", out, 28, 4 if lost else 1)
        elif number in (11, 38):
            self._create(connection, number, out, faults)
        elif number in (13, 39):
            self._destroy(connection, number, out)
        elif number == 35:
            group, *entity = struct.unpack_from("<III", out, 24)
            struct.pack_into("<i", out, 36, self.state.group_error if group in connection.groups else BAD_PARAMETER)
            connection.groups.get(group, []).append((entity[0], entity[1]))
        elif number in (29, 30):
            self._watch(connection, number, out)
        elif number == 54:
            return 0, self._history(connection, out, faults)
        elif number in BUFFER_BYTES:
            return 0, self._latest(connection, number, out, faults)
        return 0, bytes(out)

    def _entities(self, out: bytearray, faults: frozenset[EngineFault]) -> None:
        group = struct.unpack_from("<I", out, 24)[0]
        ids = list(self.state.gpus) if group == GPU else list(self._gpu_instances()) if group == GPU_INSTANCE else []
        struct.pack_into(f"<{len(ids)}I", out, 28, *ids)
        struct.pack_into("<I", out, 4124, 5000 if EngineFault.WRONG_COUNT in faults else len(ids))

    def _gpu_instances(self) -> dict[int, tuple[int, int, int]]:
        """Return DCGM's GPU instance id to its GPU, its position on that GPU, and its slices."""
        every = (
            (gpu, at, slices)
            for gpu, device in self.state.gpus.items()
            for at, (_, slices) in enumerate(device.instances)
        )
        return dict(enumerate(every))

    def _hierarchy(self, out: bytearray, faults: frozenset[EngineFault]) -> None:
        struct.pack_into("<i", out, _RESULTS[50], self.state.hierarchy_error)
        entry, at, compute = struct.Struct("<IIII128sIIIII"), 32, 0
        for entity, (gpu, place, slices) in self._gpu_instances().items():
            device = self.state.gpus[gpu]
            uuid, number = str(device.values.get(54, "")).encode(), place + 1
            entry.pack_into(out, at, GPU_INSTANCE, entity, GPU, gpu, uuid, gpu, number, 0xFFFF_FFFF, 19, slices)
            at += entry.size
            for id_, own in enumerate(device.compute_slices.get(place, [slices])):
                row = (COMPUTE_INSTANCE, compute, GPU_INSTANCE, entity, uuid, gpu, number, id_, 0, own)
                entry.pack_into(out, at, *row)
                at += entry.size
                compute += 1
        count = (at - 32) // entry.size
        struct.pack_into("<I", out, 28, 5000 if EngineFault.WRONG_COUNT in faults else count)

    def _create(self, connection: ClientState, number: int, out: bytearray, faults: frozenset[EngineFault]) -> None:
        connection.next_id += 1
        made = connection.next_id + (2**40 if EngineFault.WIDE_IDS in faults else 0)
        if number == 11:
            connection.groups[connection.next_id] = []
            struct.pack_into("<Q", out, 1056, made)
            return
        (count,) = struct.unpack_from("<I", out, 28)
        ids = list(struct.unpack_from(f"<{min(count, 128)}H", out, 296))
        if self.state.unknown & set(ids):
            struct.pack_into("<i", out, 552, BAD_PARAMETER)
            return
        connection.fields[connection.next_id] = ids
        struct.pack_into("<Q", out, 32, made)

    @staticmethod
    def _destroy(connection: ClientState, number: int, out: bytearray) -> None:
        """Delete a group. A watch that still uses it is the client's mistake."""
        if number == 13:
            gone: object = connection.groups.pop(struct.unpack_from("<I", out, 24)[0], None)
            struct.pack_into("<i", out, 28, BAD_PARAMETER if gone is None else 0)
            return
        gone = connection.fields.pop(struct.unpack_from("<Q", out, 32)[0], None)
        struct.pack_into("<i", out, 552, BAD_PARAMETER if gone is None else 0)

    def _watch(self, connection: ClientState, number: int, out: bytearray) -> None:
        group, fields = struct.unpack_from("<II", out, 24)
        entities = [(GPU, gpu) for gpu in self.state.gpus] if group == ALL_GPUS else connection.groups.get(group)
        if entities is None or fields not in connection.fields:
            struct.pack_into("<i", out, 52, BAD_PARAMETER)
            return
        refused = [self.state.unwatchable[one] for one in connection.fields[fields] if one in self.state.unwatchable]
        if number == 30:
            connection.watched.pop((group, fields), None)
        elif refused:
            struct.pack_into("<i", out, 52, refused[0])
        else:
            connection.watched[group, fields] = {
                (kind, id_, one) for kind, id_ in entities for one in connection.fields[fields]
            }

    def _latest(self, connection: ClientState, number: int, out: bytearray, faults: frozenset[EngineFault]) -> bytes:
        most = 64 if number in (22, 52) else 1024
        after = 28 + 8 * most
        count = struct.unpack_from("<I", out, after)[0]
        flat = struct.unpack_from(f"<{2 * min(count, most)}I", out, 28)
        entities = list(zip(flat[::2], flat[1::2], strict=True))
        field_count, flags = struct.unpack_from("<II", out, after + 264)
        fields = struct.unpack_from(f"<{min(field_count, 128)}H", out, after + 8)
        if self.state.unknown_fail_all and flags & 1 and self.state.unknown & set(fields):
            struct.pack_into("<i", out, len(out) - 8, UNKNOWN_FIELD)
            return bytes(out)
        watched = set().union(*connection.watched.values())
        now = time.time_ns() // 1000 + self.state.clock_ahead
        records = [
            self._record(kind, id_, one, now, live=bool(flags & 1), watched=watched, faults=faults)
            for kind, id_ in entities
            for one in fields
        ]
        buffer = join_records(records, faults)
        if EngineFault.FROZEN in faults:
            buffer = self._frozen.setdefault((number, bytes(out[28:])), buffer)
        if len(buffer) > BUFFER_BYTES[number]:
            struct.pack_into("<i", out, len(out) - 8, INSUFFICIENT_SIZE)
            return bytes(out)
        struct.pack_into("<I", out, len(out) - 4, len(buffer))
        return bytes(out) + buffer

    def _record(
        self,
        kind: int,
        id_: int,
        one: int,
        now: int,
        *,
        live: bool,
        watched: set[tuple[int, int, int]],
        faults: frozenset[EngineFault],
    ) -> bytes:
        status, value = self._value(kind, id_, one)
        if one in self.state.unknown:
            status, value = UNKNOWN_FIELD, 0
        elif live and one in PROFILING:
            status, value = -32, 0
        elif not live and (kind, id_, one) not in watched:
            status, value = NOT_WATCHED, 0
        elif one == 230:
            happened = self.state.xids.get((kind, id_), [])
            status, now, value = (0, *happened[-1]) if happened else (NO_DATA, now, 0)
        if EngineFault.STALE in faults and not isinstance(value, str):
            now -= HOUR
        if EngineFault.ESCAPES in faults and isinstance(value, str):
            value = f"\x1b[2J{value}\x1b]0;gone\x07\n"
        if EngineFault.SAME_NAME in faults and one in (54, 57):
            value = "GPU-5b4e07f6-3a86-4340-039d-000000000000" if one == 54 else "<<<NULL>>>"
        return encode_record(kind, id_, one, status, now, value, blob=EngineFault.BLOBS in faults)

    def _value(self, kind: int, id_: int, one: int) -> tuple[int, FieldValue]:
        if kind == GPU:
            device = self.state.gpus.get(id_)
            if device is None:
                return GPU_LOST, 0
            if one in device.statuses:
                return device.statuses[one], 0
            return (0, device.values[one]) if one in device.values else (NO_DATA, 0)
        values = self.state.parts.get((kind, id_), {})
        statuses = self.state.part_statuses.get((kind, id_), {})
        if one in statuses:
            return statuses[one], 0
        return (0, values[one]) if one in values else (NOT_SUPPORTED, 0)

    def _history(self, connection: ClientState, out: bytearray, faults: frozenset[EngineFault]) -> bytes:
        kind, id_, one = struct.unpack_from("<III", out, 24)
        since = struct.unpack_from("<q", out, 40)[0]
        (most,) = struct.unpack_from("<i", out, 60)
        watched = any((kind, id_, one) in pairs for pairs in connection.watched.values())
        happened = self.state.xids.get((kind, id_), []) if one == 230 and watched else []
        found = [encode_record(kind, id_, one, 0, at, code) for at, code in happened if at >= since][:most]
        buffer = join_records(found, faults)
        struct.pack_into("<iiI", out, 60, len(found), 0 if found else NO_DATA if watched else NOT_WATCHED, len(buffer))
        return bytes(out) + buffer
