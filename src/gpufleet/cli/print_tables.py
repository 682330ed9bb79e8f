"""Answers of a hub on a screen."""

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def print_tables(kind: str, answer: Any) -> None:
    """Print an answer for people; `kind` names the function of `query_tables`."""
    from gpufleet.cli import query_tables  # here: programs that ask for JSON do without

    tables: Callable[[Any], list[Table | str]] = getattr(query_tables, kind)
    width = shutil.get_terminal_size((140, 40)).columns
    sys.stdout.write(query_tables.render(tables(answer), width=width, colour=sys.stdout.isatty()))
