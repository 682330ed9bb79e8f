"""Reference page of event kinds and XIDs."""

from gpufleet.model.event import EVENT_KINDS
from gpufleet.model.xid import TABLE_DATE, TABLE_SOURCE, XIDS


def render_events_reference() -> str:
    """Return the page as Markdown."""
    kinds = [
        f"| `{row.kind}` | {row.help} | {row.code or '–'} | {_names(row.attributes)} | {row.reporter} |"
        for row in EVENT_KINDS.values()
    ]
    xids = [f"| {row.code} | {row.name} | {row.cls} | `{row.action}` |" for row in XIDS.values()]
    lines = [
        "# Events",
        "",
        "Rendered from the tables by `make docs`; do not edit.",
        "",
        "An event has a time, a kind, a code, attributes, and a device unless it concerns the whole machine. `sources`",
        "names the reporters if there are several. `count` is the number of reports if there was more than one.",
        "",
        "| kind | meaning | code | attributes | source |",
        "|---|---|---|---|---|",
        *kinds,
        "",
        "## XIDs",
        "",
        f"From NVIDIA's catalogue ({TABLE_SOURCE}) as of {TABLE_DATE}, rephrased. `action` is the first action that it",
        "recommends. An XID that is not listed has class and action `unknown`. An XID can have several causes: the",
        "class is the most likely. `investigate`: the accompanying events decide. `as_reported`: the message names the",
        "action.",
        "",
        "| XID | meaning | class | action |",
        "|---|---|---|---|",
        *xids,
    ]
    return "\n".join(lines) + "\n"


def _names(attributes: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in attributes) or "–"
