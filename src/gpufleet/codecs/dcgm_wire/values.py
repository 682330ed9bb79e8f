"""Value records, as they stand back to back in a reply's buffer."""

import struct
from typing import NamedTuple

from gpufleet.model.errors import WireError

RECORD = struct.Struct("<HBBbBHqII")
"""Length of the record, version, type, status, entity group, field, time, entity, unused."""

RECORD_VERSION = 1
MOST_TEXT_BYTES = 256
MOST_RECORD_BYTES = RECORD.size + MOST_TEXT_BYTES
"""Of a number or text; nothing else is asked for."""

_VALUE_AT = RECORD.size
_INT, _DOUBLE = struct.Struct("<q"), struct.Struct("<d")
_SEVEN_BIT = {"i": _INT, "t": _INT, "d": _DOUBLE}


class Entity(NamedTuple):
    """One thing that values are of: `group` is `GPU`, `GPU_INSTANCE`, ...; the id is unique within it."""

    group: int
    id: int


GPU, VGPU, SWITCH, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 2, 3, 4, 5
"""Entity groups."""


class FieldValue(NamedTuple):
    """One value of one field.

    Attributes:
        entity: what it is of.
        field: id of the field.
        status: dcgmReturn_t of this value alone.
        microseconds: since 1970, by the clock of the engine's machine.
        value: None for a record of bytes, or of a status that has none.
    """

    entity: Entity
    field: int
    status: int
    microseconds: int
    value: int | float | str | None


def decode_values(buffer: bytes, most: int) -> list[FieldValue]:
    """Decode records until the buffer ends.

    Raises:
        WireError: if a record's length does not hold it, or does not fit; or if there are more than `most`.
    """
    found: list[FieldValue] = []
    at = 0
    while at < len(buffer):
        if len(buffer) - at < RECORD.size:
            raise WireError(f"values[{len(found)}]", f"{len(buffer) - at} bytes left of {RECORD.size}")
        length, version, kind, status, group, field, time, entity, _ = RECORD.unpack_from(buffer, at)
        if length < RECORD.size or length > len(buffer) - at:
            raise WireError(f"values[{len(found)}]", f"a record of {length} bytes in {len(buffer) - at}")
        if version != RECORD_VERSION:
            raise WireError(f"values[{len(found)}]", f"a record of version {version}")
        if len(found) == most:
            raise WireError("values", f"more than {most} records")
        value = _value(chr(kind), buffer[at + _VALUE_AT : at + length])
        found.append(FieldValue(Entity(group, entity), field, status, time, value))
        at += length
    return found


def encode_value(value: FieldValue) -> bytes:
    """Return a record; what an engine does."""
    if isinstance(value.value, str):
        kind, payload = "s", value.value.encode()[:255] + b"\0"
    elif isinstance(value.value, float):
        kind, payload = "d", _DOUBLE.pack(value.value)
    else:
        kind, payload = "i", _INT.pack(value.value or 0)
    head = (RECORD.size + len(payload), RECORD_VERSION, ord(kind), value.status, value.entity.group, value.field)
    return RECORD.pack(*head, value.microseconds, value.entity.id, 0) + payload


def _value(kind: str, payload: bytes) -> int | float | str | None:
    number = _SEVEN_BIT.get(kind)
    if number is not None:
        found: int | float | None = number.unpack_from(payload)[0] if len(payload) >= number.size else None
        return found
    return payload.partition(b"\0")[0].decode("utf-8", "replace") if kind == "s" else None
