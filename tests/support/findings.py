"""Findings in memory: the registry port, the evaluator's live findings, and records for tests."""

import threading
from collections.abc import Collection, Sequence

import msgspec

from gpufleet.fleet.rules.tracker import finding_id
from gpufleet.hub.query.finding_records import RuleEvaluation
from gpufleet.model.errors import ConflictError, NotFoundError, RegistryError
from gpufleet.model.finding import Finding, FindingState, Severity
from gpufleet.model.stored.findings import (
    FindingAcknowledgement,
    FindingQuery,
    FindingsState,
    FindingTransition,
    LateStart,
    NumberedTransition,
    Silence,
    TransitionKind,
    TransitionReason,
    cluster_of,
)
from gpufleet.model.time import LATEST


class MemoryFindings:
    """Registry of findings in memory.

    Attributes:
        is_down: every call fails.
    """

    def __init__(self) -> None:
        self.is_down = False
        self._lock = threading.Lock()
        self._state = FindingsState()
        self._findings: dict[str, Finding] = {}
        self._transitions: list[NumberedTransition] = []
        self._next = 1
        self._acknowledgements: dict[str, FindingAcknowledgement] = {}
        self._silences: dict[str, Silence] = {}
        self._notified: dict[str, int] = {}
        self._contract: bytes | None = None
        self._late: dict[tuple[str, str], LateStart] = {}

    def findings_state(self) -> FindingsState:
        self._check()
        return self._state

    def save_findings(self, state: FindingsState, transitions: Sequence[FindingTransition]) -> None:
        self._check()
        with self._lock:
            self._state = state
            for one in transitions:
                self._findings[one.finding.id] = one.finding
                self._transitions.append(NumberedTransition(self._next, one))
                self._next += 1

    def late_starts(self) -> tuple[LateStart, ...]:
        self._check()
        return tuple(one for _, one in sorted(self._late.items()))

    def save_late_starts(self, starts: Sequence[LateStart], judged: Collection[tuple[str, str]] = ()) -> None:
        self._check()
        self._late |= {(one.cluster, one.sender): one for one in starts}
        for who in judged:
            self._late.pop(who, None)

    def contract_state(self) -> bytes | None:
        self._check()
        return self._contract

    def save_contract_state(self, state: bytes) -> None:
        self._check()
        self._contract = state

    def findings(self, query: FindingQuery) -> tuple[Finding, ...]:
        self._check()
        with self._lock:
            ordered = sorted(self._findings.values(), key=_place)
            found = [one for one in ordered if _matches(one, query)]
            return tuple(self._with_acknowledgement(one) for one in found[: query.limit])

    def finding(self, id: str) -> Finding:  # noqa: A002 - the term of the domain
        self._check()
        with self._lock:
            if id not in self._findings:
                raise NotFoundError(f"there is no finding {id!r}")
            return self._with_acknowledgement(self._findings[id])

    def finding_timeline(self, id: str) -> tuple[FindingTransition, ...]:  # noqa: A002
        self._check()
        return tuple(one.transition for one in self._transitions if one.transition.finding.id == id)

    def finding_transitions(self, after: int, limit: int) -> tuple[NumberedTransition, ...]:
        self._check()
        return tuple(one for one in self._transitions if one.number > after)[:limit]

    def newest_transition(self) -> int:
        self._check()
        return max((one.number for one in self._transitions), default=0)

    def acknowledge_finding(self, acknowledgement: FindingAcknowledgement) -> Finding:
        found = self.finding(acknowledgement.finding)
        if found.closed_at is not None:
            raise ConflictError(f"finding {found.id!r} is closed")
        with self._lock:
            self._acknowledgements[found.id] = acknowledgement
        return self._with_acknowledgement(found)

    def finding_acknowledgements(self, ids: Sequence[str]) -> dict[str, FindingAcknowledgement]:
        self._check()
        return {one: self._acknowledgements[one] for one in ids if one in self._acknowledgements}

    def add_silence(self, silence: Silence) -> None:
        self._check()
        self._silences[silence.id] = silence

    def end_silence(self, id: str, at: int) -> Silence:  # noqa: A002
        self._check()
        with self._lock:
            if id not in self._silences:
                raise NotFoundError(f"there is no silence {id!r}")
            found = self._silences[id]
            if found.until > at:
                found = self._silences[id] = msgspec.structs.replace(found, until=at)
            return found

    def silences(self, since: int) -> tuple[Silence, ...]:
        self._check()
        return tuple(sorted((one for one in self._silences.values() if one.until > since), key=_silence_place))

    def remove_silences(self, ended_before: int, limit: int) -> int:
        self._check()
        with self._lock:
            old = sorted((one.until, one.id) for one in self._silences.values() if one.until < ended_before)[:limit]
            for _, id_ in old:
                del self._silences[id_]
            return len(old)

    def notified(self, receiver: str) -> int | None:
        self._check()
        return self._notified.get(receiver)

    def set_notified(self, receiver: str, number: int) -> None:
        self._check()
        self._notified[receiver] = number

    def keep_receivers(self, receivers: Collection[str]) -> int:
        self._check()
        others = self._notified.keys() - receivers
        for one in others:
            del self._notified[one]
        return len(others)

    def remove_findings(self, closed_before: int, limit: int, undelivered_before: int = 0) -> int:
        self._check()
        with self._lock:
            last = min(self._notified.values(), default=LATEST)
            missing = {one.transition.finding.id for one in self._transitions if one.number > last}
            old = [
                one.id
                for one in sorted(self._findings.values(), key=lambda one: one.closed_at or 0)
                if one.closed_at is not None
                and one.closed_at < closed_before
                and (one.id not in missing or one.closed_at < undelivered_before)
            ][:limit]
            for id_ in old:
                del self._findings[id_]
                self._acknowledgements.pop(id_, None)
            self._transitions = [one for one in self._transitions if one.transition.finding.id not in old]
            return len(old)

    def _check(self) -> None:
        if self.is_down:
            raise RegistryError("the registry is down")

    def _with_acknowledgement(self, found: Finding) -> Finding:
        acknowledgement = self._acknowledgements.get(found.id)
        return msgspec.structs.replace(found, acknowledged_until=acknowledgement and acknowledgement.until)


def _place(found: Finding) -> tuple[int, str]:
    """Return the place of a finding in the order of lists: newest opening first, then by id."""
    return -found.opened_at, found.id


def _silence_place(silence: Silence) -> tuple[int, str]:
    return silence.at, silence.id


def _matches(found: Finding, query: FindingQuery) -> bool:
    cluster = cluster_of(found.scope)
    return (
        (query.clusters is None or cluster in query.clusters)
        and (not query.rules or found.rule in query.rules)
        and (not query.severities or found.severity in query.severities)
        and (query.scope in (None, found.scope) or found.scope.startswith(f"{query.scope}/"))
        and (query.subjects is None or found.scope in query.subjects)
        and (query.is_closed is None or query.is_closed is (found.closed_at is not None))
        and found.opened_at < query.end
        and (found.closed_at is None or found.closed_at > query.start)
        and (query.after is None or _place(found) > (-query.after[0], query.after[1]))
    )


class EvaluatorStub:
    """Live findings of an evaluator, as the test sets them.

    Attributes:
        found: open findings.
        status: status of the evaluation.
    """

    def __init__(self, status: RuleEvaluation | None = None) -> None:
        self.found: tuple[Finding, ...] = ()
        self.status = status or RuleEvaluation()

    def open_findings(self) -> Sequence[Finding]:
        """Return the open findings."""
        return self.found

    def evaluation(self) -> RuleEvaluation:
        """Return the status of the evaluation."""
        return self.status


def make_finding(
    rule: str,
    scope: str,
    opened_at: int,
    *,
    severity: Severity = Severity.WARNING,
    closed_at: int | None = None,
    evidence: dict[str, str] | None = None,
    state: FindingState = FindingState.OPEN,
    hidden_by: str = "",
    acknowledged_until: int | None = None,
) -> Finding:
    """Return a finding, closed if a time is given."""
    return Finding(
        id=finding_id(rule, scope, opened_at),
        rule=rule,
        scope=scope,
        severity=severity,
        state=state if closed_at is None else FindingState.CLOSED,
        evidence=evidence or {},
        first=opened_at,
        last=closed_at or opened_at,
        opened_at=opened_at,
        closed_at=closed_at,
        hidden_by=hidden_by,
        acknowledged_until=acknowledged_until,
    )


def transitions_of(found: Finding) -> tuple[FindingTransition, ...]:
    """Return the transitions that lead to a finding: its opening and, if it is closed, its closing."""
    opening = msgspec.structs.replace(found, closed_at=None, state=FindingState.OPEN, last=found.opened_at)
    opened = FindingTransition(
        kind=TransitionKind.OPENED, at=found.opened_at, reason=TransitionReason.FIRING, finding=opening
    )
    if found.closed_at is None:
        return (opened,)
    closed = FindingTransition(
        kind=TransitionKind.CLOSED, at=found.closed_at, reason=TransitionReason.HEALTHY, finding=found
    )
    return opened, closed
