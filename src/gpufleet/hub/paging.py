"""Lists in pages: how many, and after what. Pure."""

import base64
import binascii

import msgspec

from gpufleet.hub.history import QuestionError
from gpufleet.model.answer import MachineRecord

MOST = 1000
"""Entries of one page, unless fewer are asked for."""

Key = tuple[str, str, str]
"""Cluster, name and id of a machine: the order of every list."""

MAX_CURSOR = 4096


class Asked(msgspec.Struct, frozen=True):
    """The page that is asked for: at most so many entries (about, for devices), after that machine."""

    limit: int = MOST
    after: Key | None = None


def asked(limit: int | None, cursor: str | None) -> Asked:
    """Read what was asked for.

    Raises:
        QuestionError: naming the parameter.
    """
    if limit is not None and not 1 <= limit <= MOST:
        raise QuestionError("limit", f"must be from 1 to {MOST}")
    return Asked(MOST if limit is None else limit, None if cursor is None else _key(cursor))


def cursor_after(machine: MachineRecord) -> str:
    """Return what to ask for the page after a machine with."""
    key = (machine.cluster, machine.machine.name, machine.id)
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(key)).decode().rstrip("=")


def _key(cursor: str) -> Key:
    try:
        if len(cursor) > MAX_CURSOR:
            raise ValueError
        key: Key = msgspec.msgpack.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=Key)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise QuestionError("cursor", "is not the `next` of a page of this list") from error
    return key
