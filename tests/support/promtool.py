"""Unit tests of rules, run by promtool: many cases in one process."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

INTERVAL = "1m"
Series = Mapping[str, str]
"""Series with labels to their values, in promtool's notation: `1x10` is 1 and ten more samples."""


class Expected(NamedTuple):
    """Expected result of a query: value by labels, such as `name{label="value"}` or `{label="value"}`."""

    query: str
    result: Mapping[str, float]
    at: str = "5m"


class RuleCase(NamedTuple):
    """Input series and the expected results of rules and queries."""

    name: str
    series: Series
    expected: Sequence[Expected]


def labelled(name: str, labels: Mapping[str, str]) -> str:
    """Return a series in PromQL's notation; empty labels are left out."""
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items() if value)}}}"


def firing(*alerts: str, at: str, of: str = "") -> Expected:
    """Expect these alerts, as `name input`, with the label `alertname` like `of`, to be the firing ones."""
    query = f'group by (alertname, input) (ALERTS{{alertstate="firing",alertname=~"{of or ".+"}"}})'
    pairs = [alert.split(" ") for alert in alerts]
    return Expected(query, {labelled("", {"alertname": name, "input": source}): 1 for name, source in pairs}, at)


def run_cases(promtool: Path, rules: str, cases: Iterable[RuleCase], folder: Path) -> None:
    """Run the cases over the rules; fail with promtool's report."""
    (folder / "rules.yml").write_text(rules)
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": INTERVAL,
        "tests": [_case(one) for one in cases],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(document))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


def _case(case: RuleCase) -> dict[str, Any]:
    return {
        "name": case.name,
        "interval": INTERVAL,
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [
            {
                "expr": one.query,
                "eval_time": one.at,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in one.result.items()],
            }
            for one in case.expected
        ],
    }
