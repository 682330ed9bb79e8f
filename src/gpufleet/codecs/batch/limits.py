"""Limits of a batch, and field names for the positions in decoder errors."""

import re
import types
import typing
from typing import Any

import msgspec

from gpufleet.model.wire.batch import WireBatch


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one batch, checked before the memory is allocated.

    Attributes:
        body_bytes: size of the body as received.
        message_bytes: size of the MessagePack message after decompression.
        items: elements of all lists together (a record beside the samples counts as 16, and four bytes of the cluster
            part as 1); bounds the memory of a decoded batch to about 300 MB. Counted for messages of a megabyte and
            more.
        machines, views, absences: entries of these lists; `absences` counts sets.
        blocks: sample blocks, and dimension blocks.
        days: number of distinct UTC days of its rows and events; the store has one partition per day.
    """

    body_bytes: int = 8 << 20
    message_bytes: int = 64 << 20
    items: int = 4_000_000
    machines: int = 20_000
    views: int = 200_000
    absences: int = 100_000
    blocks: int = 2_000
    days: int = 32


_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.(\w+)")


def name_place(error: msgspec.ValidationError, root: Any = WireBatch, within: str = "") -> tuple[str, str]:
    """Split a decoder error into field and reason: `$[11][0][9]` is `samples[0].columns`.

    `root` is the type of the whole message; the decoded part is at `within` in it.
    """
    reason, _, path = str(error).replace(" - at `key` in `$", " - at `$").partition(" - at `$")
    place: Any = root
    name = ""
    for step in _STEP.finditer(within + path.rstrip("`")):
        place = _plain(place)
        position, key = step.groups()
        if position and isinstance(place, type) and issubclass(place, msgspec.Struct):
            field = msgspec.structs.fields(place)[int(position)]
            name, place = f"{name}.{field.name}", field.type
        elif position:
            inner = [one for one in typing.get_args(place) if one is not Ellipsis]  # `tuple[T, ...]`
            name, place = f"{name}[{position}]", inner[-1] if inner else object
        else:
            types_by_name = {f.name: f.type for f in msgspec.structs.fields(place)}
            name, place = f"{name}.{key}", types_by_name[key]
    return name.removeprefix("."), reason[:1].lower() + reason[1:]


def _plain(place: Any) -> Any:
    """Strip bounds and `| None` from a type."""
    while True:
        if typing.get_origin(place) is typing.Annotated or (
            isinstance(place, types.UnionType) and len(typing.get_args(place)) == 2
        ):
            place = typing.get_args(place)[0]
        else:
            return place
