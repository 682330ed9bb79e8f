"""Encoding of requests, one function per command; each returns the frame."""

import struct
from collections.abc import Sequence

from gpufleet.codecs.dcgm_wire.commands import (
    CORE,
    ENTITIES,
    FIELDS_CREATE,
    FIELDS_DESTROY,
    FIELDS_LAYOUT,
    GPU_STATUS,
    GROUP_ADD,
    GROUP_CREATE,
    GROUP_DESTROY,
    HIERARCHY,
    HISTORY,
    HISTORY_LAYOUT,
    LATEST_LARGE,
    LATEST_SMALL,
    MAX_ENTITY_IDS,
    MAX_FIELDS,
    MODULE,
    UNWATCH,
    UPDATE,
    VERSION,
    WATCH,
    WATCH_LAYOUT,
    Command,
    Latest,
)
from gpufleet.codecs.dcgm_wire.frame import encode_frame
from gpufleet.codecs.dcgm_wire.values import Entity

_U32 = struct.Struct("<I")


def version_request(request: int) -> bytes:
    """Request the engine's build information."""
    return _frame(VERSION, request, _U32.pack(0x02000204).ljust(VERSION.size - MODULE.size, b"\0"))


def entities_request(request: int, group: int) -> bytes:
    """Request the ids of the supported entities of an entity group."""
    payload = struct.pack("<I4096xII", group, MAX_ENTITY_IDS, 1)
    return _frame(ENTITIES, request, payload.ljust(ENTITIES.size - MODULE.size, b"\0"))


def hierarchy_request(request: int) -> bytes:
    """Request all GPU instances and compute instances."""
    return _frame(HIERARCHY, request, _U32.pack(0x02011F08).ljust(HIERARCHY.size - MODULE.size, b"\0"))


def gpu_status_request(request: int, gpu: int) -> bytes:
    """Request the status of a GPU."""
    return _frame(GPU_STATUS, request, _U32.pack(gpu).ljust(GPU_STATUS.size - MODULE.size, b"\0"))


def create_group_request(request: int, name: str) -> bytes:
    """Request a new empty group of entities."""
    payload = struct.pack("<I1024s", 1, name.encode()[:1023])
    return _frame(GROUP_CREATE, request, payload.ljust(GROUP_CREATE.size - MODULE.size, b"\0"))


def add_to_group_request(request: int, group: int, entity: Entity) -> bytes:
    """Request adding an entity to a group."""
    return _frame(GROUP_ADD, request, struct.pack("<IIIi", group, entity.group, entity.id, 0))


def destroy_group_request(request: int, group: int) -> bytes:
    """Request deletion of a group."""
    return _frame(GROUP_DESTROY, request, struct.pack("<Ii", group, 0))


def create_fields_request(request: int, name: str, fields: Sequence[int]) -> bytes:
    """Request a new group of fields; it fails if the engine does not know one of them.

    Raises:
        ValueError: if there are more than `MAX_FIELDS`.
    """
    payload = FIELDS_LAYOUT.pack(0x01000210, len(fields), 0, name.encode()[:255], *_padded(fields, MAX_FIELDS), 0)
    return _frame(FIELDS_CREATE, request, payload)


def destroy_fields_request(request: int, fields: int) -> bytes:
    """Request deletion of a group of fields."""
    return _frame(FIELDS_DESTROY, request, FIELDS_LAYOUT.pack(0x01000210, 0, fields, b"", *[0] * MAX_FIELDS, 0))


def watch_request(
    request: int, group: int, fields: int, *, every_seconds: float, keep_seconds: float, keep_samples: int
) -> bytes:
    """Request periodic sampling of fields; the engine takes the first sample before it replies."""
    payload = WATCH_LAYOUT.pack(group, fields, round(every_seconds * 1e6), keep_seconds, keep_samples, 0)
    return _frame(WATCH, request, payload)


def unwatch_request(request: int, group: int, fields: int) -> bytes:
    """Request the end of periodic sampling."""
    return _frame(UNWATCH, request, WATCH_LAYOUT.pack(group, fields, 0, 0.0, 0, 0))


def update_request(request: int) -> bytes:
    """Request sampling of all watched fields now, with a reply when done."""
    return _frame(UPDATE, request, struct.pack("<Ii", 1, 0))


def latest_request(
    form: Latest, request: int, entities: Sequence[Entity], fields: Sequence[int], *, live: bool = True
) -> bytes:
    """Request the newest value of each field of each entity.

    Raises:
        ValueError: if the form does not hold that many entities or fields.
    """
    ids = [part for entity in entities for part in entity]
    layout = LATEST_LARGE if form.fixed > 1000 else LATEST_SMALL
    payload = layout.pack(
        0, *_padded(ids, 2 * form.entities), len(entities), 0, *_padded(fields, MAX_FIELDS), len(fields), live, 0, 0
    )
    return _frame(form.command, request, payload)


def history_request(request: int, entity: Entity, field: int, since_microseconds: int, most: int) -> bytes:
    """Request the samples of a watched field since an instant of the engine's clock, oldest first."""
    payload = HISTORY_LAYOUT.pack(entity.group, entity.id, field, since_microseconds, 0, 1, most, 0, 0)
    return _frame(HISTORY, request, payload)


def _frame(command: Command, request: int, payload: bytes) -> bytes:
    length = MODULE.size + len(payload)
    return encode_frame(request, MODULE.pack(length, CORE, command.number, 0, 0, command.version) + payload)


def _padded(numbers: Sequence[int], room: int) -> list[int]:
    if len(numbers) > room:
        raise ValueError(f"{len(numbers)} numbers, more than {room}")
    return [*numbers, *[0] * (room - len(numbers))]
