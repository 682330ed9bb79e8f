"""Replies: one function a question, each reads a body. The engine is a stranger: every count and length is checked.

All of them raise `WireError` for a body that is not a reply to that question, or is shorter than one.
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
    """One entry of the MIG hierarchy; the layout is dcgmMigHierarchyInfo_v2_t's."""

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
        WireError: if the reply is shorter than that.
    """
    return int(_I32.unpack_from(_body(command, body, RESULT_AT[command.number] + 4), RESULT_AT[command.number])[0])


def read_nothing(_: bytes) -> None:
    """Take a reply that says nothing but its result."""


def read_version(body: bytes) -> dict[str, str]:
    """Return what the engine says of its build: `version`, `arch`, `buildtype`, ... as it names them."""
    text = _body(VERSION, body, VERSION.size)[28:540].partition(b"\0")[0].decode("utf-8", "replace")
    pairs = (part.partition(":") for part in text.split(";"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def read_entities(body: bytes) -> list[int]:
    """Return the ids. Raises WireError if the engine claims more than it has room for."""
    body = _body(ENTITIES, body, ENTITIES.size)
    (count,) = _U32.unpack_from(body, 4124)
    if count > MAX_ENTITY_IDS:
        raise WireError("numEntities", f"{count}, of {MAX_ENTITY_IDS} possible")
    return list(struct.unpack_from(f"<{count}I", body, 28))


def read_hierarchy(body: bytes) -> list[Instance]:
    """Return the MIG entities. Raises WireError if the engine claims more than it has room for."""
    body = _body(HIERARCHY, body, HIERARCHY.size)
    (count,) = _U32.unpack_from(body, 28)
    if count > _MAX_INSTANCES:
        raise WireError("count", f"{count}, of {_MAX_INSTANCES} possible")
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
    """Return the id of a new group of entities. Raises WireError for one that no other command has room for."""
    return _id(GROUP_CREATE, _body(GROUP_CREATE, body, GROUP_CREATE.size), 1056)


def read_fields(body: bytes) -> int:
    """Return the id of a new group of fields. Raises WireError for one that no other command has room for."""
    return _id(FIELDS_CREATE, _body(FIELDS_CREATE, body, FIELDS_CREATE.size), 32)


def read_latest(form: Latest, body: bytes, most: int) -> list[FieldValue]:
    """Return the values. Raises WireError if the buffer is not what the engine says, or has more than `most`."""
    return decode_values(_buffer(form.command, body, form.fixed), most)


def read_history(body: bytes, most: int) -> list[FieldValue]:
    """Return the samples. Raises WireError as `read_latest`."""
    return decode_values(_buffer(HISTORY, body, HISTORY_FIXED), most)


def _id(command: Command, body: bytes, at: int) -> int:
    """Return an id: 64 bits where it is made, 32 where it is used."""
    found = int(_U64.unpack_from(body, at)[0])
    if found > 0xFFFF_FFFF:
        raise WireError(command.name, f"an id of {found}, which is longer than 32 bits")
    return found


def _body(command: Command, body: bytes, least: int) -> bytes:
    """Return the body if it is a reply to this command, and long enough."""
    if len(body) < max(least, MODULE.size):
        raise WireError(command.name, f"a reply of {len(body)} bytes, of {least}")
    _, module, number, _, _, version = MODULE.unpack_from(body)
    if (module, number, version) != (CORE, command.number, command.version):
        raise WireError(command.name, f"a reply to command {number} of module {module}, struct {version:#010x}")
    return body


def _buffer(command: Command, body: bytes, fixed: int) -> bytes:
    (size,) = _U32.unpack_from(_body(command, body, fixed), fixed - 4)
    if size > len(body) - fixed:
        raise WireError(command.name, f"a buffer of {size} bytes in {len(body) - fixed}")
    return body[fixed : fixed + size]
