"""Commands of a host engine, and layouts of requests and replies.

Only read commands are defined here. An engine obeys any client that reaches its socket, and some of its commands
inject values, create devices, set power limits or detach GPUs. There is no function here to send those.

Offsets are from the start of the body, including the 24 bytes of the module header.
"""

import struct
from typing import NamedTuple

MODULE = struct.Struct("<IIIIII")
"""Length (of the frame's body), module, command, connection, request, version of the struct."""

CORE = 0
"""Module of every command here."""

MAX_FIELDS, MAX_ENTITIES, MAX_ENTITY_IDS = 128, 64, 1024
ALL_GPUS = 0x7FFF_FFFF
LIVE = 1
"""Flag: read the driver now, watched or not. Not possible for profiling fields."""


class Command(NamedTuple):
    """Command: its number, the version of its struct (which includes the size), and the size of the struct."""

    name: str
    number: int
    version: int
    size: int


class Latest(NamedTuple):
    """Request version for latest values.

    Attributes:
        command: number and struct.
        entities: maximum number of entities.
        fixed: size of the request; in the reply a buffer follows it.
    """

    command: Command
    entities: int
    fixed: int


VERSION = Command("HOSTENGINE_VERSION", 10, 0x0100021C, 540)
ENTITIES = Command("GET_ENTITY_GROUP_ENTITIES", 14, 0x02001028, 4136)
HIERARCHY = Command("GET_GPU_INSTANCE_HIERARCHY", 50, 0x01011F24, 73508)
GPU_STATUS = Command("GET_GPU_STATUS", 9, 0x01000020, 32)
GROUP_CREATE = Command("CREATE_GROUP", 11, 0x01000430, 1072)
GROUP_ADD = Command("GROUP_ADD_ENTITY", 35, 0x01000028, 40)
GROUP_DESTROY = Command("GROUP_DESTROY", 13, 0x01000020, 32)
FIELDS_CREATE = Command("FIELDGROUP_CREATE", 38, 0x01000230, 560)
FIELDS_DESTROY = Command("FIELDGROUP_DESTROY", 39, 0x01000230, 560)
WATCH = Command("WATCH_FIELDS", 29, 0x01000038, 56)
UNWATCH = Command("UNWATCH_FIELDS", 30, 0x01000038, 56)
UPDATE = Command("UPDATE_ALL_FIELDS", 25, 0x01000020, 32)
HISTORY = Command("GET_MULTIPLE_VALUES", 54, 0x023FE048, 4_186_184)

LATEST_FORMS: tuple[Latest, ...] = (
    Latest(Command("ENTITIES_GET_LATEST_V3", 63, 0x03400134, 4_194_612), 1024, 8500),
    Latest(Command("ENTITIES_GET_LATEST_V4", 79, 0x04400000, 4_194_304), 1024, 8500),
    Latest(Command("ENTITIES_GET_LATEST_V2", 52, 0x023FE334, 4_186_932), 64, 820),
    Latest(Command("ENTITIES_GET_LATEST_V1", 22, 0x01004334, 17_204), 64, 820),
)
"""Order of attempts with an engine of unknown version; all of 4.0 to 4.6 support the first."""

_OTHERS = (VERSION, ENTITIES, HIERARCHY, GPU_STATUS, GROUP_CREATE, GROUP_ADD, GROUP_DESTROY, FIELDS_CREATE)
_MORE = (FIELDS_DESTROY, WATCH, UNWATCH, UPDATE, HISTORY)
READ_ONLY = frozenset(command.number for command in (*_OTHERS, *_MORE, *(form.command for form in LATEST_FORMS)))
"""Every command number that this module can send. Groups and watches are this connection's own and end with it."""

HISTORY_LAYOUT = struct.Struct("<IIIxxxxqqIiiI")
LATEST_LARGE = struct.Struct("<I2048III128HIIiI")
LATEST_SMALL = struct.Struct("<I128III128HIIiI")
FIELDS_LAYOUT = struct.Struct("<IIQ256s128Hi4x")
WATCH_LAYOUT = struct.Struct("<IIqdii")
"""Payloads after the module header."""

HISTORY_FIXED = MODULE.size + HISTORY_LAYOUT.size
RESULT_AT = {
    ENTITIES.number: 4132,
    HIERARCHY.number: 73504,
    GROUP_CREATE.number: 1064,
    GROUP_ADD.number: 36,
    GROUP_DESTROY.number: 28,
    FIELDS_CREATE.number: 552,
    FIELDS_DESTROY.number: 552,
    WATCH.number: 52,
    UNWATCH.number: 52,
    UPDATE.number: 28,
    HISTORY.number: 64,
    **{form.command.number: form.fixed - 8 for form in LATEST_FORMS},
}
"""Offset of `cmdRet`; VERSION and GPU_STATUS have none."""
