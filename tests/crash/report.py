"""Table at the end of a run."""

import statistics
from collections.abc import Mapping, Sequence

from tests.crash.recovery import Times


def render(times: Mapping[str, Sequence[Times]]) -> str:
    """Return a table of faults: count, and seconds until fresh values and until drained, median and maximum."""
    rows = [("fault", "times", "fresh median", "worst", "drained median", "worst")]
    for name, some in sorted(times.items()):
        fresh, drained = [one.fresh for one in some], [one.drained for one in some]
        figures = (statistics.median(fresh), max(fresh), statistics.median(drained), max(drained))
        rows.append((name, str(len(some)), *(f"{figure:.1f}" for figure in figures)))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
