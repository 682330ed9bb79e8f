"""Findings over time: a state machine from verdicts to openings and closings. Pure.

- A finding opens after its rule fired for the pending time, and closes after the subject was healthy for the closing
  time. Only time between two verdicts of the same kind counts, at most `MAX_STEP_SECONDS` per judgement.
- An unknown verdict changes nothing: it neither opens nor closes a finding. Health that follows only from inputs that
  are missing since the rule fired is unknown, too.
- A finding whose subject is missing from the facts closes after `GONE_SECONDS` between judgements without it.
- A hidden subject counts as unknown. A rule hides its effects from its first firing on, until its finding is closed.
- A finding that opened `FLAP_OPENINGS` times within `FLAP_SECONDS` flaps: it closes after this time only. That is time
  between judgements: steps of the hub's clock do not count.
- The number of tracked findings is limited, see `quota`.
"""

import hashlib
from collections.abc import Collection, Iterable

import msgspec

from gpufleet.fleet.rules.judgement import Judgement, RuleVerdicts
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.rules.quota import FindingQuota
from gpufleet.fleet.rules.rule import CLOSING, ESCALATION, PENDING, FindingRule, Limits, Thresholds
from gpufleet.fleet.rules.suppression import Suppression
from gpufleet.model.finding import Finding, RuleScope, Severity
from gpufleet.model.stored.findings import (
    MAX_OPENINGS,
    FindingPhase,
    FindingsState,
    FindingTransition,
    TrackedFinding,
    TransitionKind,
    TransitionReason,
    cluster_of,
)
from gpufleet.model.time import NANOS

MAX_STEP_SECONDS = 180.0
"""Longest time between two judgements that counts: three intervals. In a longer pause nothing was observed."""

MAX_TRACKED = 100_000
"""Default of the maximum number of findings with a quota; beyond it, new ones are only counted as untracked."""

GONE_SECONDS = 7 * 86400.0
"""Time without its subject in the facts after which a finding closes."""

FLAP_OPENINGS = 3
FLAP_SECONDS = 3600.0
"""Number of openings within a time from which a finding flaps."""

_RANK = {severity: rank for rank, severity in enumerate((Severity.INFO, Severity.WARNING, Severity.CRITICAL))}


class Findings:
    """Open, pending and recently closed findings of a set of rules."""

    def __init__(
        self,
        rules: Iterable[FindingRule],
        thresholds: Thresholds,
        state: FindingsState | None = None,
        *,
        max_tracked: int = MAX_TRACKED,
    ) -> None:
        """Take the rules in the order in which they hide each other, and the exported state of an earlier tracker."""
        self._rules = {rule.id: rule for rule in rules}
        self._thresholds = thresholds
        self._quota = FindingQuota(max_tracked)
        state = state or FindingsState()
        self.at = state.at
        """Time of the transitions of the newest judgement, nanoseconds since 1970."""
        self._clock = state.clock
        self._second = state.second
        self._tracked: dict[str, dict[str, TrackedFinding]] = {rule_id: {} for rule_id in self._rules}
        for one in state.tracked:
            self._tracked.setdefault(one.rule, {})[one.scope] = msgspec.structs.replace(one)
            if one.rule in self._rules:
                self._quota.restore(self._rules[one.rule].scope, one.scope)
        self.untracked = 0
        """Subjects that fired at the newest judgement and are not tracked because of the maximum."""

    def export(self) -> FindingsState:
        """Return a copy of the state, to be stored together with the transitions that led to it."""
        tracked = tuple(msgspec.structs.replace(one) for row in self._tracked.values() for one in row.values())
        return FindingsState(at=self.at, clock=self._clock, second=self._second, tracked=tracked)

    def list_open(self) -> tuple[Finding, ...]:
        """Return the open findings, in the order of the rules."""
        rows = self._tracked.values()
        return tuple(one.finding() for row in rows for one in row.values() if one.phase is FindingPhase.OPEN)

    def update(self, judgement: Judgement) -> tuple[FindingTransition, ...]:
        """Take the verdicts of a judgement; return the transitions that result.

        The time of the transitions is that of the judgement. If the clock was set back, it is just after the last one:
        times of transitions always increase.
        """
        step = min(max(0.0, (judgement.at - self._clock) / NANOS), MAX_STEP_SECONDS) if self._clock else 0.0
        self._clock = judgement.at
        self.at = max(judgement.at, self.at + 1)
        self._second += step
        self._quota.divide(judgement.facts.tables[RuleScope.CLUSTER].keys)
        self.untracked = 0
        transitions: list[FindingTransition] = []
        hidden = Suppression(judgement, self._rules.values(), self._open_keys)
        for rule_id, verdicts in judgement.verdicts.items():
            if rule_id in self._rules:
                self._update_rule(verdicts, hidden, judgement.facts.unread, step, transitions)
        for rule_id in [one for one in self._tracked if one not in self._rules]:
            for one in self._tracked.pop(rule_id).values():
                self._close(one, TransitionReason.RULE_REMOVED, transitions)
        return tuple(transitions)

    def _open_keys(self, rule: FindingRule) -> list[str]:
        return [key for key, one in self._tracked[rule.id].items() if one.phase is FindingPhase.OPEN]

    def _update_rule(
        self,
        verdicts: RuleVerdicts,
        hidden: Suppression,
        unread: Collection[str],
        step: float,
        transitions: list[FindingTransition],
    ) -> None:
        rule, table = verdicts.rule, verdicts.table
        tracked = self._tracked[rule.id]
        limits = self._thresholds.of(rule)
        causes, retired = hidden.causes(rule), hidden.retired_for(rule)
        fired = self._update_firing(verdicts, (causes == 0) & ~retired, step, transitions)
        for key in [key for key in tracked if key not in fired]:
            one, row = tracked[key], table.row(key)
            if row is None:
                keep = self._miss(one, unread, step, transitions)
            elif retired[row]:
                self._close(one, TransitionReason.RETIRED, transitions)
                keep = False
            elif causes[row] or verdicts.unknown[row] or _is_unproven(one, verdicts, row, limits):
                one.set_unknown(hidden.name(int(causes[row])))
                keep = one.phase is not FindingPhase.CLOSED or bool(self._recent(one))
            else:
                keep = self._recover(one, limits, step, transitions)
            if not keep:
                del tracked[key]
                self._quota.remove(rule.scope, key)

    def _update_firing(
        self, verdicts: RuleVerdicts, visible: Column, step: float, transitions: list[FindingTransition]
    ) -> set[str]:
        """Record the subjects for which a rule fires, except hidden and retired ones; return their keys."""
        rule, table = verdicts.rule, verdicts.table
        tracked, limits = self._tracked[rule.id], self._thresholds.of(rule)
        shown = visible[verdicts.firing]
        fired = set()
        for row, escalated in zip(verdicts.firing[shown].tolist(), verdicts.escalated[shown].tolist(), strict=True):
            key = table.keys[row]
            fired.add(key)
            one = tracked.get(key)
            if one is None:
                if not self._quota.add(rule.scope, key):
                    self.untracked += 1
                    continue
                one = tracked[key] = TrackedFinding(rule=rule.id, scope=key, severity=rule.severity)
            self._fire(one, rule, limits, escalated, step)
            one.evidence = verdicts.evidence(row)
            self._open_or_escalate(one, limits, transitions)
        return fired

    def _fire(self, one: TrackedFinding, rule: FindingRule, limits: Limits, escalated: bool, step: float) -> None:
        """Record that the rule fires."""
        if one.phase is FindingPhase.CLOSED:
            one.restart(rule.severity)
        if not one.first:
            one.first = self.at
        one.firing_seconds += step if one.is_firing else 0.0
        one.healthy_seconds = 0.0
        one.last = self.at
        one.is_firing, one.is_healthy, one.hidden_by, one.gone_seconds = True, False, "", None
        after = limits.get(ESCALATION, 0.0)
        if escalated or (after and one.firing_seconds >= after):
            one.severity = max(one.severity, rule.escalated_severity, key=_RANK.__getitem__)

    def _open_or_escalate(self, one: TrackedFinding, limits: Limits, transitions: list[FindingTransition]) -> None:
        if one.phase is FindingPhase.PENDING:
            if one.firing_seconds < limits[PENDING]:
                return
            one.phase, one.opened_at, one.reported = FindingPhase.OPEN, self.at, one.severity
            one.id = finding_id(one.rule, one.scope, self.at)
            one.openings = (*self._recent(one), self._second)[-MAX_OPENINGS:]
            transitions.append(self._transition(TransitionKind.OPENED, one, TransitionReason.FIRING))
        elif one.severity is not one.reported:
            one.reported = one.severity
            transitions.append(self._transition(TransitionKind.ESCALATED, one, TransitionReason.FIRING))

    def _recover(self, one: TrackedFinding, limits: Limits, step: float, transitions: list[FindingTransition]) -> bool:
        """Record that the subject is healthy; return whether the finding is still tracked."""
        one.healthy_seconds += step if one.is_healthy else 0.0
        one.is_firing, one.is_healthy, one.hidden_by, one.gone_seconds = False, True, "", None
        if one.phase is FindingPhase.PENDING:
            one.phase = FindingPhase.CLOSED
        elif one.healthy_seconds >= limits[CLOSING] and len(self._recent(one)) < FLAP_OPENINGS:
            self._close(one, TransitionReason.HEALTHY, transitions)
        return one.phase is FindingPhase.OPEN or bool(self._recent(one))

    def _miss(
        self, one: TrackedFinding, unread: Collection[str], step: float, transitions: list[FindingTransition]
    ) -> bool:
        """Record that the facts lack the subject; return whether the finding is still tracked.

        No time counts while the subjects of the cluster could not be read.
        """
        gone = one.gone_seconds
        one.set_unknown("")
        if cluster_of(one.scope) not in unread:
            one.gone_seconds = 0.0 if gone is None else gone + step
            if one.gone_seconds >= GONE_SECONDS:
                self._close(one, TransitionReason.SUBJECT_GONE, transitions)
        else:
            one.gone_seconds = gone
        return one.phase is FindingPhase.OPEN or bool(self._recent(one))

    def _close(self, one: TrackedFinding, reason: TransitionReason, transitions: list[FindingTransition]) -> None:
        if one.phase is FindingPhase.OPEN:
            one.phase = FindingPhase.CLOSED
            transitions.append(self._transition(TransitionKind.CLOSED, one, reason))

    def _recent(self, one: TrackedFinding) -> tuple[float, ...]:
        return tuple(second for second in one.openings if self._second - second < FLAP_SECONDS)

    def _transition(self, kind: TransitionKind, one: TrackedFinding, reason: TransitionReason) -> FindingTransition:
        closed_at = self.at if kind is TransitionKind.CLOSED else None
        return FindingTransition(kind=kind, at=self.at, reason=reason, finding=one.finding(closed_at))


def _is_unproven(one: TrackedFinding, verdicts: RuleVerdicts, row: int, limits: Limits) -> bool:
    return one.phase is not FindingPhase.CLOSED and verdicts.is_unproven(row, one.evidence, limits)


def finding_id(rule: str, scope: str, opened_at: int) -> str:
    """Return the id of a finding: a hash of rule, subject and time of opening."""
    return hashlib.blake2b(f"{rule}\0{scope}\0{opened_at}".encode(), digest_size=12).hexdigest()
