"""Checks of `gpufleet doctor` as text: a line per passed check, more for others; inapplicable ones are grouped."""

import io
import textwrap
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gpufleet.doctor.facts import CheckResult, CheckVerdict

STYLES = {
    CheckVerdict.OK: "green",
    CheckVerdict.WARNING: "yellow",
    CheckVerdict.FAILED: "bold red",
    CheckVerdict.UNKNOWN: "magenta",
    CheckVerdict.NOT_APPLICABLE: "dim",
}
"""Colour of each verdict."""

MARGIN = 9
"""Width of the verdict column, including a space."""


def render_checks(checks: Sequence[CheckResult], *, width: int, colour: bool, verbose: bool) -> str:
    """Render the checks.

    Args:
        checks: in display order.
        width: of the terminal, in columns.
        colour: whether to use colours.
        verbose: show what each check proves, and do not group inapplicable checks.
    """
    page = io.StringIO()
    console = Console(
        file=page, width=width, force_terminal=colour, no_color=not colour, highlight=False, soft_wrap=True
    )
    for check in checks:
        if verbose or check.verdict is not CheckVerdict.NOT_APPLICABLE:
            for text in _lines(check, width, verbose=verbose):
                console.print(text)
    if not verbose:
        inapplicable: dict[str, list[str]] = {}
        for check in checks:
            if check.verdict is CheckVerdict.NOT_APPLICABLE:
                inapplicable.setdefault(check.found, []).append(check.name)
        for found, names in inapplicable.items():
            for line in _wrapped("-", f"{', '.join(names)}: {found}", width):
                console.print(Text(line, style="dim"))
    counted = Counter(check.verdict for check in checks)
    totals = [f"{counted[verdict]} {verdict.replace('_', ' ')}" for verdict in STYLES if counted[verdict]]
    console.print(", ".join(totals))
    return page.getvalue()


def _lines(check: CheckResult, width: int, *, verbose: bool) -> list[Text]:
    verdict = "-" if check.verdict is CheckVerdict.NOT_APPLICABLE else check.verdict.value
    lines = [Text(line) for line in _wrapped(verdict, f"{check.name}: {check.found}", width)]
    lines[0].stylize(STYLES[check.verdict], 0, len(verdict))
    if verbose:
        lines += [Text(line, style="dim") for line in _wrapped("", f"proves: {check.proves}", width)]
    if check.fix and check.verdict is not CheckVerdict.NOT_APPLICABLE:
        lines += [Text(line) for line in _wrapped("", f"fix: {check.fix}", width)]
    return lines


def _wrapped(verdict: str, text: str, width: int) -> list[str]:
    text_width = max(width - MARGIN, 20)
    lines = textwrap.wrap(text, text_width, break_on_hyphens=False) or [""]
    return [f"{verdict if number == 0 else '':<{MARGIN}}{line}" for number, line in enumerate(lines)]
