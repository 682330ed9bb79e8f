"""Kinds of events and the table of XIDs as a reference page."""

from gpufleet.model.event import KINDS
from gpufleet.model.xid import TABLE_DATE, TABLE_SOURCE, XIDS


def render_events_reference() -> str:
    """Return the page as Markdown."""
    kinds = [
        f"| `{row.kind}` | {row.help} | {row.code or '–'} | {_names(row.attributes)} | {row.told_by} |"
        for row in KINDS.values()
    ]
    xids = [f"| {row.code} | {row.name} | {row.cls} | `{row.action}` |" for row in XIDS.values()]
    lines = [
        "# Events",
        "",
        "Rendered from the tables by `make docs`; do not edit.",
        "",
        "An event has a time, a device (or none: then it is the machine's), a kind, a code and attributes. `sources`",
        "names who told it where several can; `count` how often it was told where more than once.",
        "",
        "| kind | meaning | code | attributes | told by |",
        "|---|---|---|---|---|",
        *kinds,
        "",
        "## XIDs",
        "",
        f"After NVIDIA's catalogue ({TABLE_SOURCE}) as of {TABLE_DATE}, in our words; `action` is what it",
        "advises to do first. A number that is not here is `unknown` in class and action. One number can have causes",
        "in several places: the class is the likeliest. `investigate`: what comes with it decides; `as_told`: the",
        "message names the action.",
        "",
        "| XID | meaning | class | action |",
        "|---|---|---|---|",
        *xids,
    ]
    return "\n".join(lines) + "\n"


def _names(attributes: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in attributes) or "–"
