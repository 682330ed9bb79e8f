"""The views that statements read, as a reference page."""

from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.sql import SqlLimits
from gpufleet.stores.clickhouse.sql.functions import FUNCTIONS
from gpufleet.stores.clickhouse.sql.views import VIEWS


def render_sql_reference() -> str:
    """Return the page as Markdown."""
    limits = SqlLimits()
    lines = [
        "# SQL",
        "",
        "Rendered from the tables by `make docs`; do not edit.",
        "",
        "`POST /v1/query` and `gpufleet query sql` take one `SELECT` of ClickHouse's dialect over these views, from",
        f"administrators. It ends after {limits.seconds:g} s, may take {limits.memory_bytes // 10**6:,} MB of memory;",
        f"and its answer has at most {limits.rows:,} rows and {limits.result_bytes >> 20} MiB. How it is asked:",
        "[answers](../answers.md#sql).",
        "",
    ]
    for view in VIEWS:
        lines += [f"## {view.name}", "", view.help, "", "| column | what it says |", "|---|---|"]
        lines += [f"| `{column.name}` | {column.help} |" for column in view.columns if column.name not in CATALOGUE]
        metrics = sum(column.name in CATALOGUE for column in view.columns)
        if metrics:
            lines.append(
                f"| {metrics} metrics | a column for each metric that has no dimensions and is no text, by its name in "
                "[metrics.md](metrics.md), in its unit; NULL where it is absent (`fleet_absences` says why) or of "
                "another kind of subject |"
            )
        lines.append("")
    names = ", ".join(f"`{name}`" for name in sorted(FUNCTIONS))
    lines += [
        "## Functions",
        "",
        "These may be called, in any case, aggregates also with `If` and `Distinct`; every other one is refused:",
        "",
        names + ".",
    ]
    return "\n".join(lines) + "\n"
