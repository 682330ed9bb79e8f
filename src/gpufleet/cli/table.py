"""Tables of the commands: columns that fit a terminal, or tab-separated rows. Pure.

On a terminal a row is one line, except where a column wraps. Identities are neither folded nor cut. Columns of lower
importance are left out if the terminal is too narrow. Without a terminal every column is written in full.
"""

import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec

from gpufleet.cli.options import OptionError
from gpufleet.model.text import printable

ABSENT = "-"
"""Cell without a value."""

GAP = "  "
MIN_CUT, MIN_WRAP = 10, 24
"""Minimum width of a column that may be cut, and of one that may wrap."""

_LABEL_START = re.compile(r"(?<=[{,])(?=[a-z_]+=)")
"""Place before a label of a series, such as `{device=sda,mode=read}`: a text that wraps may break there."""

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


class TextColumn(msgspec.Struct, frozen=True):
    """Column of a table.

    Attributes:
        name: title, and name in `--columns` and `--sort`.
        rank: order of omission on a narrow terminal, highest first; 0 is always shown.
        wide: shown on a terminal only with `--wide` or by name.
        right: aligned to the right.
        cut: free text that may be cut to fit.
        wrap: free text that may take several lines.
        least: minimum width if it may be cut or wrap; 0 for the default.
    """

    name: str
    rank: int = 0
    wide: bool = False
    right: bool = False
    cut: bool = False
    wrap: bool = False
    least: int = 0


class Cell(msgspec.Struct, frozen=True):
    """Cell of a table.

    Attributes:
        text: text on a terminal; empty if there is no value.
        full: text with `--wide` and without a terminal; empty if it is the same.
        key: value for sorting and for `--state`; None if it is the text.
        absent: absence reason.
    """

    text: str = ""
    full: str = ""
    key: str | float | None = None
    absent: str = ""


class TextTable(msgspec.Struct, frozen=True):
    """Table of an answer.

    Attributes:
        columns: all columns, in order.
        rows: cells of each row, one per column.
        what: plural noun for its rows.
        group: name of a column whose values become headings on a terminal; rows of a group are adjacent.
    """

    columns: Sequence[TextColumn]
    rows: Sequence[Sequence[Cell | str]]
    what: str
    group: str = ""


class Layout(msgspec.Struct, frozen=True):
    """Selection and order of rows and columns.

    Attributes:
        wide: show every column in full.
        columns: show only these columns.
        sort: column to sort by; a leading `-` reverses the order.
        limit: maximum number of rows.
        states: show only rows with one of these states.
    """

    wide: bool = False
    columns: tuple[str, ...] = ()
    sort: str = ""
    limit: int | None = None
    states: tuple[str, ...] = ()


class RenderedPage(msgspec.Struct, frozen=True):
    """Output of a command: the tables, and notes about them."""

    text: str
    notes: str


def arrange(table: TextTable, layout: Layout) -> TextTable:
    """Return the table with the selected rows in the selected order.

    Raises:
        OptionError: if a column does not exist.
    """
    rows = [[_cell(one) for one in row] for row in table.rows]
    if layout.states:
        place = _position(table, "state", "--state")
        rows = [row for row in rows if _text_key(row[place]) in layout.states]
    if layout.sort:
        place = _position(table, layout.sort.removeprefix("-"), "--sort")
        known = [row for row in rows if not _is_empty(row[place])]
        known.sort(key=lambda row: _order(row[place]), reverse=layout.sort.startswith("-"))
        rows = known + [row for row in rows if _is_empty(row[place])]
    return msgspec.structs.replace(table, rows=rows[: layout.limit])


def render(
    parts: Iterable[TextTable | str], layout: Layout, *, width: int | None, colour: bool = False
) -> RenderedPage:
    """Render tables and notes.

    Args:
        parts: tables, and notes as texts.
        layout: selection of rows and columns; rows are selected in the first table only.
        width: columns of the terminal; None writes tab-separated rows.
        colour: whether to emphasize titles.

    Raises:
        OptionError: if the layout names a column that does not exist.
    """
    blocks: list[str] = []
    notes: list[str] = []
    absent: Counter[str] = Counter()
    is_first = True
    for part in parts:
        if isinstance(part, str):
            notes.append(part)
            continue
        chosen = layout if is_first else Layout(wide=layout.wide)
        table = arrange(part, chosen)
        is_first = False
        shown = _chosen(table, chosen, everything=width is None)
        if width is None:
            blocks.append(_tab_separated(table, shown))
        elif table.rows:
            shown, hidden = _fitting(table, shown, chosen, width)
            blocks.append(_columns(table, shown, chosen, width, colour))
            if hidden:
                notes.append(f"Columns left out at this width: {', '.join(hidden)}. --wide shows all.")
        if not table.rows:
            notes.append(f"no {table.what}")
        absent.update(_cell(row[place]).absent for row in table.rows for place in shown)
    reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(absent.items()) if reason)
    if reasons:
        notes.append(f"- is absent: {reasons}. `gpufleet why` shows the reason of each reading.")
    wrapped = notes if width is None else [line for note in notes for line in _note_lines(note, width)]
    return RenderedPage("\n".join(blocks), "".join(f"{printable(line)}\n" for line in wrapped))


def _note_lines(note: str, width: int) -> list[str]:
    return textwrap.wrap(printable(note), max(width, MIN_WRAP), break_on_hyphens=False)


def _position(table: TextTable, name: str, option: str) -> int:
    names = [one.name for one in table.columns]
    if name.lower() not in names:
        raise OptionError(option, f"there is no column {name!r}: the columns are {', '.join(names)}")
    return names.index(name.lower())


def _chosen(table: TextTable, layout: Layout, *, everything: bool) -> list[int]:
    if layout.columns:
        return [_position(table, name, "--columns") for name in layout.columns]
    return [place for place, one in enumerate(table.columns) if everything or layout.wide or not one.wide]


def _tab_separated(table: TextTable, shown: Sequence[int]) -> str:
    lines = ["\t".join(table.columns[place].name for place in shown)]
    lines += ["\t".join(_full(_cell(row[place])) for place in shown) for row in table.rows]
    return "".join(f"{line}\n" for line in lines)


def _fitting(table: TextTable, shown: Sequence[int], layout: Layout, width: int) -> tuple[list[int], list[str]]:
    """Return the columns that fit the width, and the names of those that are left out for lack of room."""
    if layout.columns:
        return list(shown), []
    least = {place: _least(table, place) for place in shown}
    kept = [
        place
        for place in shown
        if table.columns[place].name != table.group
        and (not table.columns[place].rank or any(_has_content(_cell(row[place])) for row in table.rows))
    ]
    hidden: list[int] = []
    if layout.wide:
        return kept, []
    while sum(least[place] + len(GAP) for place in kept) - len(GAP) > width:
        droppable = [place for place in kept if table.columns[place].rank]
        if not droppable:
            break
        dropped = max(droppable, key=lambda place: (table.columns[place].rank, place))
        kept.remove(dropped)
        hidden.append(dropped)
    return kept, [table.columns[place].name for place in sorted(hidden)]


def _natural(table: TextTable, place: int, *, wide: bool = False) -> int:
    cells = (_shown(_cell(row[place]), wide=wide) for row in table.rows)
    return max(len(table.columns[place].name), *map(display_width, cells))


def _least(table: TextTable, place: int) -> int:
    column, natural = table.columns[place], _natural(table, place)
    if not column.cut and not column.wrap:
        return natural
    return min(natural, max(column.least or (MIN_CUT if column.cut else MIN_WRAP), len(column.name)))


def _columns(table: TextTable, shown: Sequence[int], layout: Layout, width: int, colour: bool) -> str:
    widths = {place: _natural(table, place, wide=layout.wide) for place in shown}
    excess = sum(widths.values()) + len(GAP) * (len(shown) - 1) - width
    if excess > 0 and not layout.wide and not layout.columns:
        elastic = [place for place in shown if table.columns[place].cut or table.columns[place].wrap]
        room = {place: widths[place] - _least(table, place) for place in elastic}
        total = sum(room.values())
        for place in elastic:  # in proportion to what each can give
            taken = min(room[place], -(-excess * room[place] // total)) if total else 0
            widths[place] -= taken
    titles = [table.columns[place].name for place in shown]
    head = _line(table, shown, titles, widths)
    lines = [f"{BOLD}{head}{PLAIN}" if colour else head]
    group = next((place for place, one in enumerate(table.columns) if one.name == table.group), None)
    heading = ""
    for row in table.rows:
        if group is not None and (text := printable(_text_key(_cell(row[group])))) != heading:
            heading = text
            lines += ["", f"{BOLD}{heading}{PLAIN}" if colour else heading]
        wrapped = [
            _wrapped(table.columns[place], _shown(_cell(row[place]), wide=layout.wide), widths[place])
            for place in shown
        ]
        for number in range(max(map(len, wrapped))):
            texts = [cell[number] if number < len(cell) else "" for cell in wrapped]
            lines.append(_line(table, shown, texts, widths))
    return "".join(f"{line}\n" for line in lines)


def _line(table: TextTable, shown: Sequence[int], texts: Sequence[str], widths: dict[int, int]) -> str:
    padded = []
    for place, text in zip(shown, texts, strict=True):
        filler = " " * (widths[place] - display_width(text))
        padded.append(f"{filler}{text}" if table.columns[place].right else f"{text}{filler}")
    return GAP.join(padded).rstrip()


def _wrapped(column: TextColumn, text: str, width: int) -> list[str]:
    if column.wrap and display_width(text) > width:
        return textwrap.wrap(_LABEL_START.sub(" ", text), width, break_on_hyphens=False) or [""]
    return [cut_to(text, width) if column.cut else text]


def cut_to(text: str, width: int) -> str:
    """Return the text, cut to a number of terminal columns, with an ellipsis in place of the rest."""
    if display_width(text) <= width:
        return text
    fitting = sum(1 for used in accumulate(display_width(one) for one in text) if used <= width - 1)
    return f"{text[:fitting]}…"


def display_width(text: str) -> int:
    """Return the number of terminal columns of a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def _cell(cell: Cell | str) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _full(cell: Cell) -> str:
    return printable(cell.full or cell.text) or ABSENT


def _shown(cell: Cell, *, wide: bool) -> str:
    return _full(cell) if wide else printable(cell.text) or ABSENT


def _has_content(cell: Cell) -> bool:
    return bool(cell.absent) or not _is_empty(cell)


def _is_empty(cell: Cell) -> bool:
    return not cell.text or cell.text == ABSENT


def _text_key(cell: Cell) -> str:
    return str(cell.key if cell.key is not None else cell.text)


def _order(cell: Cell) -> tuple[bool, float, str]:
    if isinstance(cell.key, int | float):
        return False, cell.key, ""
    return True, 0.0, str(cell.key or cell.full or cell.text)
