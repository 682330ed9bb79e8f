"""Value records in the buffer of a reply."""

import struct
from typing import NamedTuple

from gpufleet.model.errors import WireError

RECORD = struct.Struct("<HBBbBHqII")
"""Length of the record, version, type, status, entity group, field, time, entity, unused."""

RECORD_VERSION = 1
MOST_TEXT_BYTES = 256
MOST_RECORD_BYTES = RECORD.size + MOST_TEXT_BYTES
"""Maximum size of a record of a number or text; other types are never requested."""

_VALUE_AT = RECORD.size
_INT, _DOUBLE = struct.Struct("<q"), struct.Struct("<d")
_SEVEN_BIT = {"i": _INT, "t": _INT, "d": _DOUBLE}


class Entity(NamedTuple):
    """Entity with values: `group` is `GPU`, `GPU_INSTANCE`, ...; the id is unique within the group."""

    group: int
    id: int


GPU, VGPU, SWITCH, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 2, 3, 4, 5
"""Entity groups."""


class FieldValue(NamedTuple):
    """Value of a field.

    Attributes:
        entity: entity of the value.
        field: id of the field.
        status: dcgmReturn_t of this value alone.
        microseconds: time since 1970, by the clock of the engine's machine.
        value: None for a record of bytes, or for a status without value.
    """

    entity: Entity
    field: int
    status: int
    microseconds: int
    value: int | float | str | None


def decode_values(buffer: bytes, most: int) -> list[FieldValue]:
    """Decode records until the buffer ends.

    Raises:
        WireError: if the length of a record is too short or too long, or there are more than `most` records.
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
    """Encode a record, as an engine does."""
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
