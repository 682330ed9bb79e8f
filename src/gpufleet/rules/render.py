"""Rendering of rules as YAML: a rule file of Prometheus, or an object of the Prometheus Operator."""

import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping

from gpufleet.rules.rule import AlertRule, RecordingRule, RuleGroup

RUNBOOKS = "docs/runbooks.md"
"""The runbooks in the repository."""

RUNBOOK_URL = re.compile(r"https?://[^\s\"#\\{}]+")
"""Accepted addresses of the runbooks: braces would be a template of Prometheus."""


class RulesFormat(enum.StrEnum):
    """File format."""

    PROMETHEUS = "prometheus"
    PROMETHEUSRULE = "prometheusrule"


_OBJECT = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpufleet
spec:
"""


def render_rules(
    groups: Iterable[RuleGroup], output: RulesFormat = RulesFormat.PROMETHEUS, *, runbook_url: str = ""
) -> str:
    """Return the groups as YAML.

    Args:
        groups: groups of rules.
        output: file format.
        runbook_url: address of the published runbooks; empty for the path in the repository.
    """
    runbooks = ("runbook_url", runbook_url) if runbook_url else ("runbook", RUNBOOKS)
    indent = "  " if output is RulesFormat.PROMETHEUSRULE else ""
    head = _OBJECT if indent else ""
    lines = ["groups:", *(line for group in groups for line in _group(group, runbooks))]
    return head + "".join(f"{indent}{line}\n" if line else "\n" for line in lines)


def _group(group: RuleGroup, runbooks: tuple[str, str]) -> Iterator[str]:
    yield f"- name: {group.name}"
    yield f"  interval: {group.interval}"
    yield "  rules:"
    for rule in group.rules:
        yield from _recording(rule) if isinstance(rule, RecordingRule) else _alert(rule, runbooks)


def _recording(rule: RecordingRule) -> Iterator[str]:
    yield f"  # {rule.help}"
    yield f"  - record: {rule.record}"
    yield from _query(rule.expr)
    yield from _mapping("labels", rule.labels)


def _alert(rule: AlertRule, runbooks: tuple[str, str]) -> Iterator[str]:
    """Yield an alert; `runbooks` has the name of the annotation and the page that it points to."""
    annotation, page = runbooks
    yield f"  - alert: {rule.alert}"
    yield from _query(rule.expr)
    if rule.wait:
        yield f"    for: {rule.wait}"
    yield from _mapping("labels", {"severity": str(rule.severity), **rule.labels})
    yield from _mapping("annotations", {"summary": rule.summary, annotation: f"{page}#{rule.alert.lower()}"})


def _query(expr: str) -> Iterator[str]:
    yield "    expr: |-"
    for line in expr.splitlines():
        yield f"      {line}"


def _mapping(key: str, values: Mapping[str, str]) -> Iterator[str]:
    if values:
        yield f"    {key}:"
        for name, value in values.items():
            yield f"      {name}: {json.dumps(value)}"
