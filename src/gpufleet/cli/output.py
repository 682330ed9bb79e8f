"""Printing of a hub's answers, as tables or JSON."""

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gpufleet.cli.options import CommandError

if TYPE_CHECKING:
    from rich.table import Table


def print_tables(kind: str, answer: Any) -> None:
    """Print an answer as tables; `kind` is the name of a function of `query_tables`."""
    from gpufleet.cli import query_tables  # imported on use, because JSON output does not need it

    tables: Callable[[Any], list[Table | str]] = getattr(query_tables, kind)
    width = shutil.get_terminal_size((140, 40)).columns
    sys.stdout.write(query_tables.render(tables(answer), width=width, colour=sys.stdout.isatty()))


def print_json(body: bytes) -> None:
    """Print a JSON document with indentation.

    Raises:
        CommandError: if the body is not JSON.
    """
    try:
        document = msgspec.json.format(body, indent=2)
    except msgspec.DecodeError as error:
        raise CommandError(f"the hub did not return JSON: {error}") from error
    sys.stdout.buffer.write(document.rstrip() + b"\n")
