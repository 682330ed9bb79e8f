"""Reference page of recording rules, alerts and queries."""

from collections.abc import Iterable

from gpufleet.rules.queries import ATTRIBUTION_QUERIES, VGPU_QUERIES, RuleQuery
from gpufleet.rules.rule import AlertRule, RecordingRule, RuleInput
from gpufleet.rules.selection import rule_groups


def render_rules_reference() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Rules",
        "",
        "Rendered from the rules by `make docs`; do not edit. How to load them: [rules](../rules.md).",
        "",
        "## Recording rules",
    ]
    for source in RuleInput:
        lines += ["", f"### {source}", "", "| series | meaning |", "|---|---|"]
        rows = {rule.record: rule.help for rule in _rules(source) if isinstance(rule, RecordingRule)}
        lines += [f"| `{record}` | {text} |" for record, text in rows.items()]
    lines += ["", "## Alerts", "", "| alert | input | severity | after |", "|---|---|---|---|"]
    for source in RuleInput:
        alerts = [rule for rule in _rules(source) if isinstance(rule, AlertRule)]
        lines += dict.fromkeys(
            f"| [{one.alert}](../runbooks.md#{one.alert.lower()}) | {source} | {one.severity} | {one.wait or '0'} |"
            for one in alerts
        )
    lines += ["", "## Queries", "", "Queries over the recorded series. Names in them are examples."]
    for title, queries in (("Attribution", ATTRIBUTION_QUERIES), ("vGPUs", VGPU_QUERIES)):
        lines += ["", f"### {title}", *_queries(queries)]
    return "\n".join(lines) + "\n"


def _rules(source: RuleInput) -> Iterable[RecordingRule | AlertRule]:
    """Return the rules of an input, with those that combine it with others."""
    groups = rule_groups(list(RuleInput))
    names = (f"gpufleet-{source}", f"gpufleet-{source}-alerts")
    return [rule for group in groups if group.name in names for rule in group.rules]


def _queries(queries: Iterable[RuleQuery]) -> Iterable[str]:
    for query in queries:
        yield from ("", f"**{query.question}**", "", "```promql", *query.expr.splitlines(), "```", "", query.note)
