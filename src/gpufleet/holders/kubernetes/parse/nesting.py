"""Objects with deep values. Pure.

A user chooses some values freely, such as the parameters of a ResourceClaim: 10 kB of them can have 5,000 levels, and
the decoder has a limit of about 1,000. The fields that are read have few. Deep values are therefore left out, so that
they cost neither their object nor the list with it.
"""

import re
from typing import TypeVar

import msgspec

MAX_LEVELS = 64
"""Number of levels of arrays and objects that are kept."""

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"

Record = TypeVar("Record")


def decode_json(decoder: msgspec.json.Decoder[Record], data: bytes | msgspec.Raw) -> Record:
    """Decode JSON, without its deep values if it has more levels than the decoder supports.

    Raises:
        msgspec.DecodeError: as the decoder.
    """
    try:
        return decoder.decode(data)
    except RecursionError:
        return decoder.decode(without_deep_values(data))


def without_deep_values(data: bytes | msgspec.Raw, levels: int = MAX_LEVELS) -> bytes:
    """Return JSON with `null` for each array or object below `levels` others."""
    content = bytes(data)
    kept: list[bytes] = []
    depth = start = 0
    for match in _TOKEN.finditer(content):
        token = content[match.start()]
        if token in _OPENING:
            depth += 1
            if depth == levels + 1:
                kept += (content[start : match.start()], b"null")
        elif token in _CLOSING:
            depth -= 1
            if depth == levels:
                start = match.end()
    if depth <= levels:
        kept.append(content[start:])
    return b"".join(kept)
