"""What `gpufleet why` says, on a terminal."""

import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpufleet.cli.explain import Explanation, Line, Part
from gpufleet.exporters.words import seconds_words


def render_explanation(explanation: Explanation, *, width: int, colour: bool) -> str:
    """Return the screen."""
    page = io.StringIO()
    console = Console(
        file=page,
        width=width,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(Text(explanation.subject, style="bold"))
    for fact in explanation.facts:
        console.print(Text(f"  {fact}"))
    for part in explanation.parts:
        console.print()
        if len(explanation.parts) > 1:
            console.print(Text(part.title, style="bold"))
        console.print(_table(part))
    return page.getvalue()


def _table(part: Part) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("reading", "value or reason", "reader", "side", "age"):
        table.add_column(title, justify="right" if title == "age" else "left", overflow="fold")
    for line in part.lines:
        table.add_row(
            line.metric,
            _value(line),
            line.reader,
            line.side if line.scope in ("", "own") else f"{line.side} ({line.scope})",
            "" if line.age_seconds is None else seconds_words(line.age_seconds),
        )
    return table


def _value(line: Line) -> Text:
    if line.absent is None:
        return Text(line.words)
    text = Text(str(line.absent), style="yellow")
    if line.detail:
        text.append(f": {line.detail}")
    if line.catalogue:
        text.append(f" [catalogue: {line.catalogue}]", style="dim")
    return text
