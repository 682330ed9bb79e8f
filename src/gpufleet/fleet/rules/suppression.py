"""Suppression of effects by their cause: a dead machine hides the findings of its GPUs. Pure."""

from collections.abc import Callable, Collection, Iterable

import numpy as np

from gpufleet.fleet.rules.judgement import Judgement
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.rules.rule import FindingRule, Hides, RuleFamily
from gpufleet.model.finding import RuleScope


class Suppression:
    """Subjects whose findings are hidden at an instant, with the rule that hides them.

    A rule that is hidden itself still hides its effects: they then have its cause.

    Attributes:
        retired: whether each subject of a scope is retired.
    """

    def __init__(
        self,
        judgement: Judgement,
        rules: Iterable[FindingRule],
        open_keys: Callable[[FindingRule], Collection[str]],
    ) -> None:
        """Take the verdicts, the rules in the order in which they hide each other, and a rule's open findings."""
        facts = judgement.facts
        causes = [rule for rule in rules if rule.hides is not Hides.NOTHING and rule.id in judgement.verdicts]
        self._names = ("", *(rule.id for rule in causes))
        self._numbers = {rule.id: number for number, rule in enumerate(causes, 1)}
        self._below: dict[RuleScope, Column] = {}
        self._freshness: dict[RuleScope, Column] = {}
        self.retired = facts.retired()
        self._facts = facts
        for scope in RuleScope:
            self._below[scope] = facts.inherit(scope, self._below)
            self._freshness[scope] = facts.inherit(scope, self._freshness)
            for rule in causes:
                if rule.scope is scope:
                    table = facts.tables[scope]
                    rows = [row for key in open_keys(rule) if (row := table.row(key)) is not None]
                    hiding = np.union1d(judgement.verdicts[rule.id].hiding, np.array(rows, np.int64))
                    self._hide(rule, hiding[~self.retired[scope][hiding]])

    def causes(self, rule: FindingRule) -> Column:
        """Return the number of the rule that hides a rule's findings about each subject, 0 for none."""
        if not rule.can_be_hidden:
            return np.zeros(len(self._below[rule.scope]), np.int64)
        own = self._numbers.get(rule.id, 0)
        found = np.where(self._below[rule.scope] == own, 0, self._below[rule.scope])
        if rule.family is RuleFamily.FRESHNESS:
            freshness = self._freshness[rule.scope]
            found = np.where((found == 0) & (freshness != own), freshness, found)
        return found

    def retired_for(self, rule: FindingRule) -> Column:
        """Return whether the findings of a rule about each subject are closed because it is retired."""
        if rule.judges_retired:
            return np.asarray(self._facts.inherit(rule.scope, self.retired) != 0)
        return self.retired[rule.scope]

    def name(self, number: int) -> str:
        """Return the id of the rule with a number of `causes`, or an empty text for 0."""
        return self._names[number]

    def _hide(self, rule: FindingRule, rows: Column) -> None:
        hidden = (self._below if rule.hides is Hides.BELOW else self._freshness)[rule.scope]
        causes = self.causes(rule)[rows]
        number = np.where(causes == 0, self._numbers[rule.id], causes)
        hidden[rows] = np.where(hidden[rows] == 0, number, hidden[rows])
