"""Names places in a message by field, where the decoder knows positions only."""

import re
import types
import typing
from typing import Any

import msgspec

from gpufleet.model.wire import WireBatch

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
