"""Answers of a hub on a screen.

Printing what a hub answered.
"""

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gpufleet.cli.options import CommandError

if TYPE_CHECKING:
    from rich.table import Table


def print_tables(kind: str, answer: Any) -> None:
    """Print an answer for people; `kind` names the function of `query_tables`."""
    from gpufleet.cli import query_tables  # here: programs that ask for JSON do without

    tables: Callable[[Any], list[Table | str]] = getattr(query_tables, kind)
    width = shutil.get_terminal_size((140, 40)).columns
    sys.stdout.write(query_tables.render(tables(answer), width=width, colour=sys.stdout.isatty()))


def print_json(body: bytes) -> None:
    """Print a JSON document for people.

    Raises:
        CommandError: if it is none.
    """
    try:
        document = msgspec.json.format(body, indent=2)
    except msgspec.DecodeError as error:
        raise CommandError(f"the hub answers something else than JSON: {error}") from error
    sys.stdout.buffer.write(document.rstrip() + b"\n")
