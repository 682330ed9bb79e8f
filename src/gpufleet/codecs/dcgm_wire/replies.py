"""Decoding of replies, one function per command. The engine is untrusted: every count and length is checked.

All functions raise `WireError` for a body that is not a reply to the command, or is too short.
"""

import struct
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire.commands import (
    CORE,
    ENTITIES,
    FIELDS_CREATE,
    GPU_STATUS,
    GROUP_CREATE,
    HIERARCHY,
    HISTORY,
    HISTORY_FIXED,
    MAX_ENTITY_IDS,
    MODULE,
    RESULT_AT,
    VERSION,
    Command,
    Latest,
)
from gpufleet.codecs.dcgm_wire.values import Entity, FieldValue, decode_values
from gpufleet.model.errors import WireError

_HIERARCHY_ENTRY = struct.Struct("<IIII128sIIIII")
_ENTRIES_AT, _MAX_INSTANCES = 32, 448
_U32, _I32, _U64 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<Q")


class Instance(NamedTuple):
    """Entry of the MIG hierarchy; the layout is dcgmMigHierarchyInfo_v2_t's."""

    entity: Entity
    parent: Entity
    gpu_uuid: str
    gpu_index: int
    gpu_instance: int
    compute_instance: int
    profile: int
    slices: int


def read_result(command: Command, body: bytes) -> int:
    """Return the command's own return code, beside the frame's status.

    Raises:
        WireError: if the reply is too short.
    """
    return int(_I32.unpack_from(_body(command, body, RESULT_AT[command.number] + 4), RESULT_AT[command.number])[0])


def read_empty(_: bytes) -> None:
    """Ignore the body of a reply that has only a return code."""


def read_version(body: bytes) -> dict[str, str]:
    """Return the build information of the engine: `version`, `arch`, `buildtype`, ... under its own names."""
    text = _body(VERSION, body, VERSION.size)[28:540].partition(b"\0")[0].decode("utf-8", "replace")
    pairs = (part.partition(":") for part in text.split(";"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def read_entities(body: bytes) -> list[int]:
    """Return the entity ids. Raises WireError if the count exceeds the size of the struct."""
    body = _body(ENTITIES, body, ENTITIES.size)
    (count,) = _U32.unpack_from(body, 4124)
    if count > MAX_ENTITY_IDS:
        raise WireError("numEntities", f"{count}, more than {MAX_ENTITY_IDS}")
    return list(struct.unpack_from(f"<{count}I", body, 28))


def read_hierarchy(body: bytes) -> list[Instance]:
    """Return the MIG entities. Raises WireError if the count exceeds the size of the struct."""
    body = _body(HIERARCHY, body, HIERARCHY.size)
    (count,) = _U32.unpack_from(body, 28)
    if count > _MAX_INSTANCES:
        raise WireError("count", f"{count}, more than {_MAX_INSTANCES}")
    found = []
    for at in range(_ENTRIES_AT, _ENTRIES_AT + count * _HIERARCHY_ENTRY.size, _HIERARCHY_ENTRY.size):
        group, id_, parent_group, parent, uuid, *numbers = _HIERARCHY_ENTRY.unpack_from(body, at)
        text = uuid.partition(b"\0")[0].decode("utf-8", "replace")
        found.append(Instance(Entity(group, id_), Entity(parent_group, parent), text, *numbers))
    return found


def read_gpu_status(body: bytes) -> int:
    """Return dcgmEntityStatus_t: 1 is well, 2 unsupported, 3 inaccessible, 4 lost, 5 fake, 6 disabled, 7 detached."""
    return int(_U32.unpack_from(_body(GPU_STATUS, body, GPU_STATUS.size), 28)[0])


def read_group(body: bytes) -> int:
    """Return the id of a new group of entities. Raises WireError for an id that does not fit into other commands."""
    return _id(GROUP_CREATE, _body(GROUP_CREATE, body, GROUP_CREATE.size), 1056)


def read_fields(body: bytes) -> int:
    """Return the id of a new group of fields. Raises WireError for an id that does not fit into other commands."""
    return _id(FIELDS_CREATE, _body(FIELDS_CREATE, body, FIELDS_CREATE.size), 32)


def read_latest(form: Latest, body: bytes, most: int) -> list[FieldValue]:
    """Return the values. Raises WireError if the buffer is malformed, or has more than `most` values."""
    return decode_values(_buffer(form.command, body, form.fixed), most)


def read_history(body: bytes, most: int) -> list[FieldValue]:
    """Return the samples. Raises WireError as `read_latest`."""
    return decode_values(_buffer(HISTORY, body, HISTORY_FIXED), most)


def _id(command: Command, body: bytes, at: int) -> int:
    """Return an id: 64 bits in this reply, but 32 bits in the requests that use it."""
    found = int(_U64.unpack_from(body, at)[0])
    if found > 0xFFFF_FFFF:
        raise WireError(command.name, f"id {found} does not fit in 32 bits")
    return found


def _body(command: Command, body: bytes, least: int) -> bytes:
    """Return the body after checking that it is a reply to this command and long enough."""
    if len(body) < max(least, MODULE.size):
        raise WireError(command.name, f"a reply of {len(body)} bytes, expected at least {least}")
    _, module, number, _, _, version = MODULE.unpack_from(body)
    if (module, number, version) != (CORE, command.number, command.version):
        raise WireError(command.name, f"a reply to command {number} of module {module}, struct {version:#010x}")
    return body


def _buffer(command: Command, body: bytes, fixed: int) -> bytes:
    (size,) = _U32.unpack_from(_body(command, body, fixed), fixed - 4)
    if size > len(body) - fixed:
        raise WireError(command.name, f"a buffer of {size} bytes in {len(body) - fixed}")
    return body[fixed : fixed + size]
