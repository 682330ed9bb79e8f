"""Verdicts of rules over the facts of an instant. Pure."""

import enum
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import numpy as np

from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.inputs import UPTIME
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.rules.rule import FindingRule, Limits, Thresholds

MAX_EVIDENCE_TEXT = 256
"""Maximum length of a text of evidence."""


class RuleVerdict(enum.StrEnum):
    """Verdict of a rule about a subject."""

    FIRING = "firing"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"  # an input is missing


class RuleVerdicts(msgspec.Struct, frozen=True):
    """Verdicts of one rule about all subjects of its scope.

    Attributes:
        rule: the rule.
        table: facts about the subjects.
        firing: rows of the subjects for which it fires.
        escalated: whether its escalation condition applies, for each row of `firing`.
        unknown: for each row of the table, whether the verdict is unknown.
        hiding: rows of the subjects whose effects the rule hides.
    """

    rule: FindingRule
    table: FactTable
    firing: Column
    escalated: Column
    unknown: Column
    hiding: Column

    def verdict(self, key: str) -> RuleVerdict:
        """Return the verdict about a subject; unknown if there are no facts about it."""
        row = self.table.row(key)
        if row is None or self.unknown[row]:
            return RuleVerdict.UNKNOWN
        return RuleVerdict.FIRING if row in self.firing else RuleVerdict.HEALTHY

    def is_unproven(self, row: int, evidence: Mapping[str, str], limits: Limits) -> bool:
        """Return whether a subject is healthy only because inputs are missing that it had when the rule fired.

        The rule would still fire with their values of that time.

        Args:
            row: subject.
            evidence: result of `evidence` when the rule fired.
            limits: thresholds of the rule.
        """
        inputs = {name: self.table.column(name)[row] for name in self.rule.inputs}
        missing = {name for name, value in inputs.items() if np.isnan(value) and name in evidence}
        if not missing:
            return False
        columns = {
            name: np.array([float(evidence[name]) if name in missing else value]) for name, value in inputs.items()
        }
        with np.errstate(all="ignore"):
            return bool(self.rule.condition(columns, limits)[0] == 1)

    def evidence(self, row: int) -> dict[str, str]:
        """Return the inputs of a subject by name, without missing ones, and without the hub's uptime."""
        found = {}
        for name in self.rule.inputs:
            if name == UPTIME:
                continue
            value = float(self.table.column(name)[row])
            if not np.isnan(value):
                found[name] = str(int(value)) if value.is_integer() else f"{value:.6g}"
        for name in self.rule.texts:
            text = self.table.text(name, row)
            if text:
                found[name] = text[:MAX_EVIDENCE_TEXT]
        return found


class Judgement(msgspec.Struct, frozen=True):
    """Verdicts of all rules at an instant.

    Attributes:
        at: nanoseconds since 1970 by the hub's clock.
        facts: the judged facts.
        verdicts: one per rule, by rule id.
    """

    at: int
    facts: FleetFacts
    verdicts: Mapping[str, RuleVerdicts]


def judge(facts: FleetFacts, rules: Iterable[FindingRule], thresholds: Thresholds, now: int) -> Judgement:
    """Judge the facts by the rules; `now` is in nanoseconds since 1970."""
    with np.errstate(all="ignore"):  # a quotient of missing numbers, or by 0, is no error
        verdicts = {rule.id: _judge(facts.tables[rule.scope], rule, thresholds) for rule in rules}
    return Judgement(now, facts, verdicts)


def _judge(table: FactTable, rule: FindingRule, thresholds: Thresholds) -> RuleVerdicts:
    columns = _DeclaredInputs(rule, table)
    limits = thresholds.of(rule)
    result = rule.condition(columns, limits)
    firing = np.flatnonzero(result == 1)
    if rule.escalation is None or not len(firing):
        escalated = np.zeros(len(firing), bool)
    else:
        escalated = rule.escalation(columns, limits)[firing] == 1
    hiding = firing if rule.suspicion is None else np.flatnonzero(rule.suspicion(columns, limits) == 1)
    return RuleVerdicts(rule, table, firing, escalated, np.isnan(result), hiding)


class _DeclaredInputs(Mapping[str, Column]):
    """Columns of the inputs that a rule declares; any other name is a KeyError."""

    def __init__(self, rule: FindingRule, table: FactTable) -> None:
        self._names = rule.inputs
        self._table = table

    def __getitem__(self, name: str) -> Column:
        if name not in self._names:
            raise KeyError(name)
        return self._table.column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
