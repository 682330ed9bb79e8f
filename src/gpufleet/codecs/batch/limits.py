"""What a batch may cost its receiver.

Names places in a message by field, where the decoder knows positions only.
"""

import re
import types
import typing
from typing import Any

import msgspec

from gpufleet.model.wire.batch import WireBatch


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one batch, checked before the memory they guard is taken.

    Attributes:
        body_bytes: of the body as it came.
        message_bytes: of the MessagePack message after decompression.
        items: elements of all lists together (a record beside the samples counts for 16); bounds the memory
            of a decoded batch to about 300 MB. Counted for messages of a megabyte and more.
        machines, views, absences: entries of these lists; `absences` counts sets.
        blocks: sample blocks, and dimension blocks.
        days: different days (UTC) on which its rows and events say that they happened; a store keeps each by itself.
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
    """Split the decoder's words into field and reason: `$[11][0][9]` is `samples[0].columns`.

    `root` is what the message is as a whole; what was decoded stands at `within` in there.
    """
    reason, _, path = str(error).partition(" - at `$")
    place: Any = root
    name = ""
    for step in _STEP.finditer(within + path.rstrip("`")):
        place = _plain(place)
        position, key = step.groups()
        if position and isinstance(place, type) and issubclass(place, msgspec.Struct):
            field = msgspec.structs.fields(place)[int(position)]
            name, place = f"{name}.{field.name}", field.type
        elif position:
            inner = typing.get_args(place)
            name, place = f"{name}[{position}]", inner[-1] if inner else object
        else:
            types_by_name = {f.name: f.type for f in msgspec.structs.fields(place)}
            name, place = f"{name}.{key}", types_by_name[key]
    return name.removeprefix("."), reason[:1].lower() + reason[1:]


def _plain(place: Any) -> Any:
    """Take bounds and `| None` off a type."""
    while True:
        if typing.get_origin(place) is typing.Annotated or (
            isinstance(place, types.UnionType) and len(typing.get_args(place)) == 2
        ):
            place = typing.get_args(place)[0]
        else:
            return place
