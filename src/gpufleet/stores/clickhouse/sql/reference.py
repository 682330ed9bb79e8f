"""The views that statements read, as a reference page."""

from gpufleet.model.api.sql import SqlLimits
from gpufleet.stores.clickhouse.sql.statement import FUNCTIONS
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
        f"and its answer has at most {limits.rows:,} rows and {limits.result_bytes >> 20} MiB. Instants without",
        "a zone are in UTC. How it is asked: [answers](../answers.md#sql).",
        "",
    ]
    for view in VIEWS:
        lines += [f"## {view.name}", "", view.help, "", "| column | what it says |", "|---|---|"]
        lines += [f"| `{column.name}` | {column.help} |" for column in view.columns if not column.of_metric]
        metrics = sum(column.of_metric for column in view.columns)
        if metrics:
            lines.append(f"| {metrics} of metrics | {view.metrics} |")
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
