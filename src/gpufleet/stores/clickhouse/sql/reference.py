"""Reference page of the SQL views."""

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
        "`POST /v1/query` and `gpufleet query sql` run one `SELECT` in the ClickHouse dialect over these views, for",
        f"administrators. Limits: {limits.seconds:g} s, {limits.memory_bytes // 10**6:,} MB of memory,",
        f"{limits.rows:,} rows and {limits.result_bytes >> 20} MiB of result. Instants without a zone are in UTC.",
        "Usage: [answers](../answers.md#sql).",
        "",
    ]
    for view in VIEWS:
        lines += [f"## {view.name}", "", view.help, "", "| column | meaning |", "|---|---|"]
        lines += [f"| `{column.name}` | {column.help} |" for column in view.columns if not column.of_metric]
        metrics = sum(column.of_metric for column in view.columns)
        if metrics:
            lines.append(f"| {metrics} metric columns | {view.metrics} |")
        lines.append("")
    names = ", ".join(f"`{name}`" for name in sorted(FUNCTIONS))
    lines += [
        "## Functions",
        "",
        "Allowed functions, in upper or lower case, aggregates also with `If` and `Distinct`. Others are rejected:",
        "",
        names + ".",
    ]
    return "\n".join(lines) + "\n"
