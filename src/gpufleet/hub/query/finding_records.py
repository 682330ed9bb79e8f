"""Records of findings: subject, live values, acknowledgement and silences; rules and values for tenants. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from gpufleet.config.hub import FindingsConfig
from gpufleet.fleet.rules.rule import ID_PREFIX
from gpufleet.fleet.rules.table import RULES_BY_ID
from gpufleet.model.absence import Reason
from gpufleet.model.api.findings import (
    AcknowledgementRecord,
    EvaluationRecord,
    FindingRecord,
    FindingStatus,
    SilenceRecord,
    TimelineEntry,
)
from gpufleet.model.finding import Finding, FindingState, RuleScope, Severity
from gpufleet.model.stored.findings import FindingAcknowledgement, FindingTransition, Silence, cluster_of
from gpufleet.model.time import NANOS, to_datetime

DISABLED = "`[findings] enabled` is false in the configuration of the hub"
"""Failure of a hub that does not evaluate its rules."""

NOT_YET = "no evaluation since the hub's start"
"""Failure before the first evaluation, if there is no other reason; the only failure that a tenant receives."""

CURRENT_INTERVALS = 3
"""Number of intervals after which an evaluation is not current."""

TENANT_RULES = ("allocation.partial", "allocation.unavailable")
"""Rules whose findings a tenant may see, about its own allocations.

A rule is in the list only if its finding depends on the tenant's own allocation. `allocation.tenant_overlap` is not:
its existence reveals an allocation of another tenant.
"""

TENANT_EVIDENCE = frozenset({"answers", "devices", "expected_devices"})
"""Numbers that a tenant may see as evidence."""


class RuleEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the evaluation of the rules.

    Attributes:
        at: time of the newest evaluation, nanoseconds since 1970; None if there was none since the start.
        failure: as in `EvaluationRecord`; can be empty without an evaluation.
        untracked: as in `EvaluationRecord`.
        interval_seconds: configured time between two evaluations.
    """

    at: int | None = None
    failure: str = ""
    untracked: int | None = None
    interval_seconds: float = FindingsConfig().interval_seconds


class LiveFindings(Protocol):
    """Open findings in the evaluator's memory. Thread-safe."""

    def open_findings(self) -> Sequence[Finding]:
        """Return the open findings as of the newest evaluation."""
        ...

    def evaluation(self) -> RuleEvaluation:
        """Return the status of the evaluation."""
        ...


class NotEvaluated:
    """Live findings of a hub that does not evaluate its rules."""

    def open_findings(self) -> Sequence[Finding]:
        """Return no finding."""
        return ()

    def evaluation(self) -> RuleEvaluation:
        """Return that there is no evaluation, and the reason."""
        return RuleEvaluation(failure=DISABLED)


_SCOPES = {prefix: scope for scope, prefix in ID_PREFIX.items()}
_NUMBER = re.compile(r"-?(?:\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?|inf)")
_REASON = "reason"


def scope_of(rule: str) -> RuleScope:
    """Return the kind of subject of a rule by its id, also of a rule that this version does not have."""
    return _SCOPES[rule.partition(".")[0]]


def evaluation_record(status: RuleEvaluation, now: int, *, for_tenant: bool = False) -> EvaluationRecord:
    """Return the status of the evaluation at an instant; a tenant sees its time, and whether there was one."""
    age = None if status.at is None else max(0, now - status.at) / NANOS
    failure = "" if for_tenant else status.failure
    return EvaluationRecord(
        evaluated_at=None if status.at is None else to_datetime(status.at),
        age_seconds=age,
        is_current=age is not None and age <= CURRENT_INTERVALS * status.interval_seconds,
        failure=NOT_YET if age is None and not failure else failure,
        untracked=None if for_tenant else status.untracked,
    )


def with_live_values(found: Finding, live: Mapping[str, Finding]) -> Finding:
    """Return a finding of the registry with the values of the newest evaluation.

    Args:
        found: the finding. A closed one is unchanged.
        live: the evaluator's open findings by id. An open finding that is not among them has the state unknown.
    """
    if found.closed_at is not None:
        return found
    now = live.get(found.id)
    if now is None:
        return msgspec.structs.replace(found, state=FindingState.UNKNOWN)
    return msgspec.structs.replace(
        found, state=now.state, evidence=now.evidence, last=now.last, hidden_by=now.hidden_by, openings=now.openings
    )


def statuses_of(found: Finding, now: int) -> frozenset[FindingStatus]:
    """Return every status that a finding has at an instant."""
    if found.closed_at is not None:
        return frozenset({FindingStatus.CLOSED})
    state = FindingStatus.UNKNOWN if found.state is FindingState.UNKNOWN else FindingStatus.OPEN
    return frozenset({state, FindingStatus.ACKNOWLEDGED}) if is_acknowledged(found, now) else frozenset({state})


def is_acknowledged(found: Finding, now: int) -> bool:
    """Return whether an acknowledgement of an open finding is in force."""
    until = found.acknowledged_until
    return found.closed_at is None and until is not None and until > now


def is_silenced(found: Finding, silence: Silence) -> bool:
    """Return whether a silence selects a finding, at any time."""
    return (
        (not silence.rule or found.rule == silence.rule)
        and (not silence.subject_kinds or scope_of(found.rule) in silence.subject_kinds)
        and (not silence.scope or found.scope == silence.scope or found.scope.startswith(f"{silence.scope}/"))
    )


def finding_record(
    found: Finding,
    now: int,
    *,
    nodes: Mapping[str, str],
    acknowledgement: FindingAcknowledgement | None,
    silences: Sequence[Silence],
) -> FindingRecord:
    """Return the record of a finding, for operators.

    Args:
        found: the finding.
        now: nanoseconds since 1970.
        nodes: names of machines by id.
        acknowledgement: newest acknowledgement of the finding, or None.
        silences: silences in force.
    """
    rule, scope = RULES_BY_ID.get(found.rule), scope_of(found.rule)
    _, _, part = found.scope.partition("/")
    machine = part.partition("/")[0] if scope in (RuleScope.MACHINE, RuleScope.DEVICE) else None
    ends = [one.until for one in silences if is_silenced(found, one)] if found.closed_at is None else []
    return FindingRecord(
        id=found.id,
        rule=found.rule,
        family=rule.family.value if rule else "",
        scope=scope.value,
        subject=found.scope,
        cluster=cluster_of(found.scope),
        machine=machine,
        node=None if machine is None else nodes.get(machine),
        device=found.scope if scope is RuleScope.DEVICE else None,
        sender=part if scope is RuleScope.SENDER else None,
        allocation=part if scope is RuleScope.ALLOCATION else None,
        severity=found.severity,
        state=found.state,
        explanation=rule.explanation if rule else "",
        action=rule.action if rule else "",
        evidence=found.evidence,
        first=to_datetime(found.first),
        last=to_datetime(found.last),
        opened_at=to_datetime(found.opened_at),
        closed_at=None if found.closed_at is None else to_datetime(found.closed_at),
        duration_seconds=max(0, (now if found.closed_at is None else found.closed_at) - found.opened_at) / NANOS,
        hidden_by=found.hidden_by,
        openings=found.openings,
        acknowledged=is_acknowledged(found, now),
        acknowledgement=None if acknowledgement is None else acknowledgement_record(acknowledgement),
        silenced_until=to_datetime(max(ends)) if ends else None,
    )


def machine_of(found: Finding) -> tuple[str, str] | None:
    """Return cluster and id of the machine of a finding; None if its subject is neither a machine nor a device."""
    if scope_of(found.rule) not in (RuleScope.MACHINE, RuleScope.DEVICE):
        return None
    cluster, machine, *_ = found.scope.split("/")
    return cluster, machine


def for_tenant(record: FindingRecord) -> FindingRecord:
    """Return the record of an allocation's finding without acknowledgements, silences and data of others."""
    return msgspec.structs.replace(
        record,
        evidence=tenant_evidence(record.evidence),
        hidden_by="",
        acknowledged=False,
        acknowledgement=None,
        silenced_until=None,
    )


def tenant_evidence(evidence: Mapping[str, str]) -> dict[str, str]:
    """Return the evidence that a tenant may see: the numbers of `TENANT_EVIDENCE`, and a reason of the closed set."""
    reasons = {one.value for one in Reason}
    return {
        name: value
        for name, value in evidence.items()
        if (name in TENANT_EVIDENCE and _NUMBER.fullmatch(value)) or (name == _REASON and value in reasons)
    }


def timeline_entry(transition: FindingTransition, *, for_tenant: bool) -> TimelineEntry:
    """Return the record of a transition."""
    evidence = transition.finding.evidence
    return TimelineEntry(
        at=to_datetime(transition.at),
        kind=transition.kind,
        reason=transition.reason,
        severity=transition.finding.severity,
        evidence=tenant_evidence(evidence) if for_tenant else evidence,
    )


def acknowledgement_record(stored: FindingAcknowledgement) -> AcknowledgementRecord:
    """Return the record of an acknowledgement."""
    return AcknowledgementRecord(
        at=to_datetime(stored.at), until=to_datetime(stored.until), by=stored.actor, note=stored.note
    )


def silence_record(stored: Silence) -> SilenceRecord:
    """Return the record of a silence."""
    return SilenceRecord(
        id=stored.id,
        rule=stored.rule or None,
        subject=stored.scope or None,
        scopes=stored.subject_kinds,
        at=to_datetime(stored.at),
        until=to_datetime(stored.until),
        by=stored.actor,
        note=stored.note,
    )


SeverityCounts = dict[Severity, int]


class FindingCounts(msgspec.Struct, frozen=True):
    """Open findings by severity.

    Attributes:
        total: number by severity, findings about the hub included; None if the rules were not evaluated since the
            hub's start.
        by_cluster: number by severity of each cluster with open findings.
    """

    total: SeverityCounts | None
    by_cluster: dict[str, SeverityCounts]

    def of_cluster(self, cluster: str) -> SeverityCounts | None:
        """Return the counts of a cluster; None if the rules were not evaluated."""
        return None if self.total is None else self.by_cluster.get(cluster, _none())


def count_open(live: LiveFindings) -> FindingCounts:
    """Count the open findings as of the newest evaluation."""
    if live.evaluation().at is None:
        return FindingCounts(None, {})
    total, by_cluster = _none(), dict[str, SeverityCounts]()
    counts = Counter((cluster_of(one.scope), one.severity) for one in live.open_findings())
    for (cluster, severity), number in counts.items():
        total[severity] += number
        if cluster is not None:
            by_cluster.setdefault(cluster, _none())[severity] = number
    return FindingCounts(total, by_cluster)


def _none() -> SeverityCounts:
    return dict.fromkeys(Severity, 0)
