"""Lines of styled text with a fixed width, bars and sparklines. Pure.

`cell` is the only way of a text into a line. It removes characters that can control a terminal.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from rich.cells import cell_len, set_cell_size

from gpufleet.model.text import printable

Style = Literal["", "title", "head", "dim", "good", "warn", "bad"]

NOTHING = "-"
"""Text of a value that is absent."""

MAX_TEXT = 512
"""Maximum number of characters of a text; characters without width could make it longer than its columns."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_GAP = "·"
"""Mark of an absent value in a sparkline."""


class Span(msgspec.Struct, frozen=True):
    """Text in one style."""

    text: str
    style: Style = ""


Line = tuple[Span, ...]


def cell(text: str, width: int | None = None, style: Style = "", *, right: bool = False) -> Span:
    """Return a text without control characters, cut or padded to a width."""
    text = printable(text[:MAX_TEXT])
    if width is None:
        return Span(text, style)
    used = cell_len(text)
    if used > width:
        text = set_cell_size(text, width - 1) + "…" if width > 1 else set_cell_size(text, width)
    elif right:
        text = " " * (width - used) + text
    else:
        text += " " * (width - used)
    return Span(text, style)


def joined(spans: Iterable[Span], gap: str = " ") -> Line:
    """Return spans as a line with gaps between them."""
    found: list[Span] = []
    for span in spans:
        if found:
            found.append(Span(gap))
        found.append(span)
    return tuple(found)


def fitted(line: Line, width: int) -> Line:
    """Return the line, cut to a width."""
    found: list[Span] = []
    left = width
    for span in line:
        used = cell_len(span.text)
        if used > left:
            return (*found, Span(set_cell_size(span.text, left), span.style)) if left > 0 else tuple(found)
        found.append(span)
        left -= used
    return tuple(found)


def line_text(line: Line) -> str:
    """Return the text of a line without styles."""
    return "".join(span.text for span in line).rstrip()


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the newest ratios (0 to 1) as blocks, right-aligned; `·` is an absent value."""
    marks = [
        _GAP if value is None else _BLOCKS[int(min(1.0, max(0.0, value)) * (len(_BLOCKS) - 1) + 0.5)]
        for value in values[-width:]
    ]
    return "".join(marks).rjust(width)
