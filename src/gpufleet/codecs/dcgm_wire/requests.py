"""Requests: one function a question, each returns the frame to send."""

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


def ask_version(request: int) -> bytes:
    """Ask for the engine's build."""
    return _frame(VERSION, request, _U32.pack(0x02000204).ljust(VERSION.size - MODULE.size, b"\0"))


def ask_entities(request: int, group: int) -> bytes:
    """Ask for the ids of a group's entities that DCGM supports."""
    payload = struct.pack("<I4096xII", group, MAX_ENTITY_IDS, 1)
    return _frame(ENTITIES, request, payload.ljust(ENTITIES.size - MODULE.size, b"\0"))


def ask_hierarchy(request: int) -> bytes:
    """Ask for all GPU instances and compute instances."""
    return _frame(HIERARCHY, request, _U32.pack(0x02011F08).ljust(HIERARCHY.size - MODULE.size, b"\0"))


def ask_gpu_status(request: int, gpu: int) -> bytes:
    """Ask for the state of a GPU."""
    return _frame(GPU_STATUS, request, _U32.pack(gpu).ljust(GPU_STATUS.size - MODULE.size, b"\0"))


def ask_group(request: int, name: str) -> bytes:
    """Ask for an empty group of entities."""
    payload = struct.pack("<I1024s", 1, name.encode()[:1023])
    return _frame(GROUP_CREATE, request, payload.ljust(GROUP_CREATE.size - MODULE.size, b"\0"))


def ask_group_add(request: int, group: int, entity: Entity) -> bytes:
    """Ask for an entity to be part of a group."""
    return _frame(GROUP_ADD, request, struct.pack("<IIIi", group, entity.group, entity.id, 0))


def ask_group_end(request: int, group: int) -> bytes:
    """Give a group back."""
    return _frame(GROUP_DESTROY, request, struct.pack("<Ii", group, 0))


def ask_fields(request: int, name: str, fields: Sequence[int]) -> bytes:
    """Ask for a group of fields; one that the engine does not know fails them all.

    Raises:
        ValueError: if there are more than `MAX_FIELDS`.
    """
    payload = FIELDS_LAYOUT.pack(0x01000210, len(fields), 0, name.encode()[:255], *_padded(fields, MAX_FIELDS), 0)
    return _frame(FIELDS_CREATE, request, payload)


def ask_fields_end(request: int, fields: int) -> bytes:
    """Give a group of fields back."""
    return _frame(FIELDS_DESTROY, request, FIELDS_LAYOUT.pack(0x01000210, 0, fields, b"", *[0] * MAX_FIELDS, 0))


def ask_watch(
    request: int, group: int, fields: int, *, every_seconds: float, keep_seconds: float, keep_samples: int
) -> bytes:
    """Ask the engine to sample fields by itself; the first sample is taken before it answers."""
    payload = WATCH_LAYOUT.pack(group, fields, round(every_seconds * 1e6), keep_seconds, keep_samples, 0)
    return _frame(WATCH, request, payload)


def ask_unwatch(request: int, group: int, fields: int) -> bytes:
    """Ask the engine to sample no more."""
    return _frame(UNWATCH, request, WATCH_LAYOUT.pack(group, fields, 0, 0.0, 0, 0))


def ask_update(request: int) -> bytes:
    """Ask for all watched fields to be sampled now, and to be told when that is done."""
    return _frame(UPDATE, request, struct.pack("<Ii", 1, 0))


def ask_latest(
    form: Latest, request: int, entities: Sequence[Entity], fields: Sequence[int], *, live: bool = True
) -> bytes:
    """Ask for the newest value of each field of each entity.

    Raises:
        ValueError: if the form has no room for so many entities or fields.
    """
    ids = [part for entity in entities for part in entity]
    layout = LATEST_LARGE if form.fixed > 1000 else LATEST_SMALL
    payload = layout.pack(
        0, *_padded(ids, 2 * form.entities), len(entities), 0, *_padded(fields, MAX_FIELDS), len(fields), live, 0, 0
    )
    return _frame(form.command, request, payload)


def ask_history(request: int, entity: Entity, field: int, since_microseconds: int, most: int) -> bytes:
    """Ask for a watched field's samples since an instant of the engine's clock, oldest first."""
    payload = HISTORY_LAYOUT.pack(entity.group, entity.id, field, since_microseconds, 0, 1, most, 0, 0)
    return _frame(HISTORY, request, payload)


def _frame(command: Command, request: int, payload: bytes) -> bytes:
    length = MODULE.size + len(payload)
    return encode_frame(request, MODULE.pack(length, CORE, command.number, 0, 0, command.version) + payload)


def _padded(numbers: Sequence[int], room: int) -> list[int]:
    if len(numbers) > room:
        raise ValueError(f"{len(numbers)} numbers, and there is room for {room}")
    return [*numbers, *[0] * (room - len(numbers))]
