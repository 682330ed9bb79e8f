"""Checks as lines for people: one for what is well, more for what is not, and one for all that does not apply."""

import io
import textwrap
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gpufleet.doctor.facts import Check, Verdict

STYLES = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.FAILED: "bold red",
    Verdict.UNKNOWN: "magenta",
    Verdict.NOT_APPLICABLE: "dim",
}
"""How a verdict looks in colour."""

MARGIN = 9
"""Columns of the verdict, and one between."""


def render_checks(checks: Sequence[Check], *, width: int, colour: bool, verbose: bool) -> str:
    """Return the page.

    Args:
        checks: in their order.
        width: columns of the terminal.
        colour: whether to colour it.
        verbose: tell of every check what it proves, and each that does not apply by itself.
    """
    page = io.StringIO()
    console = Console(
        file=page, width=width, force_terminal=colour, no_color=not colour, highlight=False, soft_wrap=True
    )
    for check in checks:
        if verbose or check.verdict is not Verdict.NOT_APPLICABLE:
            for text in _lines(check, width, verbose=verbose):
                console.print(text)
    if not verbose:
        beside: dict[str, list[str]] = {}
        for check in checks:
            if check.verdict is Verdict.NOT_APPLICABLE:
                beside.setdefault(check.found, []).append(check.name)
        for found, names in beside.items():
            for line in _wrapped("-", f"{', '.join(names)}: {found}", width):
                console.print(Text(line, style="dim"))
    counted = Counter(check.verdict for check in checks)
    told = [f"{counted[verdict]} {verdict.replace('_', ' ')}" for verdict in STYLES if counted[verdict]]
    console.print(", ".join(told))
    return page.getvalue()


def _lines(check: Check, width: int, *, verbose: bool) -> list[Text]:
    verdict = "-" if check.verdict is Verdict.NOT_APPLICABLE else check.verdict.value
    lines = [Text(line) for line in _wrapped(verdict, f"{check.name}: {check.found}", width)]
    lines[0].stylize(STYLES[check.verdict], 0, len(verdict))
    if verbose:
        lines += [Text(line, style="dim") for line in _wrapped("", f"proves: {check.proves}", width)]
    if check.mend and check.verdict is not Verdict.NOT_APPLICABLE:
        lines += [Text(line) for line in _wrapped("", f"mend: {check.mend}", width)]
    return lines


def _wrapped(verdict: str, words: str, width: int) -> list[str]:
    room = max(width - MARGIN, 20)
    lines = textwrap.wrap(words, room, break_on_hyphens=False) or [""]
    return [f"{verdict if number == 0 else '':<{MARGIN}}{line}" for number, line in enumerate(lines)]
