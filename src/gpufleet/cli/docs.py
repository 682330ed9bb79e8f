"""Generator of the reference pages: `python -m gpufleet.cli.docs [FOLDER]`."""

import json
import sys
from pathlib import Path

from gpufleet.bench.document import benchmark_schema
from gpufleet.codecs.snapshot_json import snapshot_schema
from gpufleet.exporters.reference import render_dialects_reference, render_events_reference, render_metrics_reference
from gpufleet.fleet.contract.reference import render_contract
from gpufleet.fleet.rules.reference import render_findings_reference
from gpufleet.model.api.sql import SqlLimits
from gpufleet.rules.reference import render_rules_reference
from gpufleet.simulate.fleet.rule_faults import outage_times, simulations
from gpufleet.stores.clickhouse.sql.statement import FUNCTIONS
from gpufleet.stores.clickhouse.sql.views import VIEWS
from gpufleet.wiring.contract import load_contract


def reference_pages() -> dict[str, str]:
    """Return the content of each page by file name."""
    return {
        "metrics.md": render_metrics_reference(),
        "events.md": render_events_reference(),
        "sql.md": render_sql_reference(),
        "dialects.md": render_dialects_reference(),
        "rules.md": render_rules_reference(),
        "findings.md": render_findings_reference(simulations(), outage_times()),
        "../contract.md": render_contract(load_contract()),  # not a reference page: it is read before an installation
        "benchmark.schema.json": json.dumps(benchmark_schema(), indent=2) + "\n",
        "snapshot.schema.json": json.dumps(snapshot_schema(), indent=2) + "\n",
    }


def render_sql_reference() -> str:
    """Return the page of the SQL views as Markdown."""
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


def main() -> None:
    """Write the pages to the folder given as argument; the default is `docs/reference`."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in reference_pages().items():
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
