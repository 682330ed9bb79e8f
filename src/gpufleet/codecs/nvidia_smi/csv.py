"""`nvidia-smi --query-…=… --format=csv`: one line per device or process, values separated by comma and space.

Nothing is quoted, so a comma in free text (a product or process name) looks like a column separator.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.codecs.nvidia_smi.failure import named_device
from gpufleet.codecs.nvidia_smi.records import MAX_VALUE
from gpufleet.codecs.nvidia_smi.values import OutputMessages, split_lines
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.view import normalise_pci_address

SEPARATOR = ", "

_BARE = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)

MAX_COLUMNS = 1024
MAX_VALUES = 100_000

FREE_TEXTS = frozenset({"name", "gpu_name", "process_name", "hostname"})
"""Columns whose text can hold a comma."""

_ADDRESSES = ("pci.bus_id", "gpu_bus_id")
_IDENTITIES = (*_ADDRESSES, "uuid", "gpu_uuid", "index")
"""Columns that identify a GPU, the most certain first."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed table.

    Attributes:
        columns: column names without the units of the header.
        rows: column name to text.
        messages: other lines: errors of the driver, and rows with too few or too many values.
    """

    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    messages: tuple[str, ...] = ()


def parse_csv(content: bytes, columns: Sequence[str] | None = None) -> Table:
    """Parse a table.

    Args:
        content: output.
        columns: queried columns of output without a header (`noheader`); None if there is a header.

    Raises:
        WireLimitError: if it is too long, too wide or has too many rows.
        WireError: if the header is missing.
    """
    lines = split_lines(content, "csv")
    others = OutputMessages()
    units: dict[str, str] = {}
    if columns is None:
        at, columns, units = _header(lines)
        for line in lines[:at]:
            others.add(line)
        lines = lines[at + 1 :]
    names = tuple(columns)
    torn = bool(lines and lines[-1].strip())
    rows: list[dict[str, str]] = []
    for at, line in enumerate(lines):
        values = _values_of(line, names)
        if len(values) != len(names) or (len(names) == 1 and not line.strip()):
            others.add(_complaint(line, len(values), len(names)))
            continue
        if (len(rows) + 1) * len(names) > MAX_VALUES:
            raise WireLimitError("csv", f"more than {MAX_VALUES} values")
        row: dict[str, str] = {}
        differing: dict[str, None] = {}
        for name, value in zip(names, values, strict=True):
            text = _with_unit(value, units.get(name))
            if row.setdefault(name, text) != text:
                differing[name] = None
        for name in differing:
            others.add(f"column {name} is duplicated with different values and ignored")
            del row[name]
        if torn and at == len(lines) - 1:
            others.add(f"the output is truncated within a line: its last value, {names[-1]}, is ignored")
            row.pop(names[-1], None)
        rows.append(row)
    return Table(columns=names, rows=tuple(rows), messages=others.lines())


def split_rounds(content: bytes) -> list[bytes]:
    """Split an output with a header into rounds, each with the header: those of `--loop`, or of appended outputs.

    A row or message about a GPU that the round already has starts the next round, and so does a repeated header, and a
    row without identity in a round with as many rows as the round before. Rounds of messages only are one. Messages
    before the first row of a round, or before a repeated header, are a round of their own if a later row is about a GPU
    that they name, and follows the rows before it in the order of addresses: these rows were printed later.

    Raises:
        WireLimitError: if it is too long, too wide or has too many rows.
        WireError: if the header is missing.
    """
    lines = split_lines(content, "csv")
    at, names, _ = _header(lines)
    total = 0
    rounds = [lines[: at + 1]]
    head = rounds[0][-1]
    seen = {one for line in lines[:at] for one in _named(line)}
    count = before = 0
    begin = 0  # position after messages only: of a repeated header, or of the first row; 0 if none
    earlier: set[str] = set()  # GPUs that these messages name
    newest = ""  # GPU of the last row of the round
    for line in lines[at + 1 :]:
        values = _values_of(line, names)
        is_head = line.strip() == head.strip()
        is_row = not is_head and len(values) == len(names)
        total += is_row
        if total * len(names) > MAX_VALUES:
            raise WireLimitError("csv", f"more than {MAX_VALUES} values")
        gpu = _identities(dict(zip(names, values, strict=True))) if is_row else _named(line)
        is_next = gpu[0] in seen and (is_row or count > 0) if gpu else is_row and count >= before > 0
        if is_row and begin and earlier.intersection(gpu) and newest < gpu[0]:
            rounds.append([head, *rounds[-1][begin:]])
            del rounds[-2][begin:]
            seen -= earlier
            begin = 0
        elif (is_head and count > 0) or is_next:
            rounds.append([head])
            seen.clear()
            count, before, begin, newest = 0, count, 0, ""
        elif is_head or (is_row and count == begin == 0):
            begin, earlier = len(rounds[-1]), seen.copy()
        seen.update(gpu)
        if is_row:
            count += 1
            newest = gpu[0] if gpu else newest
        if not is_head:
            rounds[-1].append(line)
    whole = [[*one, ""] for one in rounds[:-1]]  # only the last line of the output can be truncated
    return ["\n".join(one).encode() for one in (*whole, rounds[-1])]


def _named(message: str) -> list[str]:
    """Return the address of the GPU that a message names."""
    named = named_device(message)
    return [] if named is None else [named[0]]


def _identities(row: Mapping[str, str]) -> list[str]:
    """Return the identities of the GPU in a row, the most certain first."""
    found: list[str] = []
    for column in _IDENTITIES:
        text = row.get(column, "").strip()
        if column in _ADDRESSES:
            with contextlib.suppress(ValueError):
                found.append(normalise_pci_address(text))
        elif text.isdecimal() if column == "index" else text.startswith("GPU-"):
            found.append(text)
    return found


def name_of(heading: str) -> str:
    """Return a column's name without its unit: `memory.total [MiB]` to `memory.total`."""
    return heading.partition(" [")[0].strip()


def _header(lines: list[str]) -> tuple[int, tuple[str, ...], dict[str, str]]:
    """Return the position of the header, its names and units: the first line that can only be a header."""
    for at, line in enumerate(lines[:64]):
        headings = line.strip().split(SEPARATOR)
        if len(headings) > MAX_COLUMNS:
            raise WireLimitError("csv", f"{len(headings)} columns, more than {MAX_COLUMNS}")
        names = tuple(name_of(heading) for heading in headings)
        if len(headings) > 1 and all(_is_name(name) for name in names):
            units = (heading.partition(" [")[2].removesuffix("]") for heading in headings)
            return at, names, dict(zip(names, units, strict=True))
    raise WireError("csv", "no header line: use --format=csv, which prints a header")


def _with_unit(value: str, unit: str | None) -> str:
    """Return the value with the unit of the heading, if `nounits` omitted it."""
    value = value.strip()[:MAX_VALUE]
    return f"{value} {unit}" if unit and _BARE.fullmatch(value) is not None else value


def _is_name(name: str) -> bool:
    return (
        0 < len(name) <= 128
        and name.isascii()
        and name[0].isalpha()
        and name.replace("_", "").replace(".", "").isalnum()
    )


def _values_of(line: str, names: Sequence[str]) -> list[str]:
    """Return the values of a line; surplus values are joined into the only column that can hold a comma.

    The last value can be empty, such as the serial number of a chassis: the line then ends with the separator.
    """
    text = line.strip()
    values = (f"{text} " if text.endswith(",") else text).split(SEPARATOR)
    surplus = len(values) - len(names)
    columns = [position for position, name in enumerate(names) if name in FREE_TEXTS] if surplus > 0 else ()
    if len(columns) != 1:
        return values
    free = columns[0]
    return [*values[:free], SEPARATOR.join(values[free : free + surplus + 1]), *values[free + surplus + 1 :]]


def _complaint(line: str, got: int, expected: int) -> str:
    """Return the line itself if it is a message, else a description of the malformed row."""
    if got == 1:
        return line
    return f"a row has {got} values, expected {expected}: {line}"
