"""Findings over time: tracked state, transitions, acknowledgements and silences."""

import enum

import msgspec

from gpufleet.model.finding import Finding, FindingState, Severity

MAX_OPENINGS = 8
"""Maximum number of opening times that are kept for a rule and a subject."""


HUB_SUBJECT = ""
"""Key of the hub as a subject. Other keys start with the id of a cluster, which is never empty."""


class FindingPhase(enum.StrEnum):
    """Phase of a tracked finding."""

    PENDING = "pending"  # the rule fires, but not for long enough
    OPEN = "open"
    CLOSED = "closed"  # kept for its opening times


class TransitionKind(enum.StrEnum):
    """Kind of a transition."""

    OPENED = "opened"
    ESCALATED = "escalated"
    CLOSED = "closed"


class TransitionReason(enum.StrEnum):
    """Reason of a transition."""

    FIRING = "firing"
    HEALTHY = "healthy"
    RETIRED = "retired"  # the subject is no longer expected
    SUBJECT_GONE = "subject_gone"  # the facts have lacked the subject for a long time
    NOT_TRACKED = "not_tracked"  # the saved state of the rules lacks the finding
    RULE_REMOVED = "rule_removed"  # this version has no such rule


class FindingTransition(msgspec.Struct, frozen=True, kw_only=True):
    """Transition of a finding.

    Attributes:
        kind: what happened.
        at: nanoseconds since 1970; later than every earlier transition of another judgement.
        reason: why.
        finding: the finding after the transition.
    """

    kind: TransitionKind
    at: int
    reason: TransitionReason
    finding: Finding


class TrackedFinding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of a rule and a subject in the tracker.

    Attributes:
        rule, scope: rule id and key of the subject.
        severity: severity so far.
        reported: severity of its newest transition.
        phase: phase.
        id: id of the finding since its opening, or empty.
        first, last, opened_at: as in `Finding`; 0 if there is none.
        firing_seconds: time of firing since `first`.
        healthy_seconds: time of health since the rule last fired.
        is_firing, is_healthy: newest verdict; neither if it was unknown.
        hidden_by: rule that hides the subject, or empty.
        evidence: as in `Finding`.
        gone_seconds: time without the subject in the facts; None while they have it.
        openings: newest opening times, in seconds of `FindingsState.second`.
    """

    rule: str
    scope: str
    severity: Severity
    reported: Severity | None = None
    phase: FindingPhase = FindingPhase.PENDING
    id: str = ""
    first: int = 0
    last: int = 0
    opened_at: int = 0
    firing_seconds: float = 0.0
    healthy_seconds: float = 0.0
    is_firing: bool = False
    is_healthy: bool = False
    hidden_by: str = ""
    gone_seconds: float | None = None
    evidence: dict[str, str] = {}
    openings: tuple[float, ...] = ()

    def restart(self, severity: Severity) -> None:
        """Become pending again, without the history except the opening times."""
        self.phase, self.severity, self.reported = FindingPhase.PENDING, severity, None
        self.id, self.first, self.opened_at = "", 0, 0
        self.firing_seconds = self.healthy_seconds = 0.0
        self.is_firing = self.is_healthy = False

    def set_unknown(self, hidden_by: str) -> None:
        """Record that the verdict is unknown, because of a missing input or of a rule that hides the subject."""
        self.is_firing = self.is_healthy = False
        self.hidden_by, self.gone_seconds = hidden_by, None

    def finding(self, closed_at: int | None = None) -> Finding:
        """Return the finding, closed if a time is given."""
        state = FindingState.OPEN if self.is_firing or self.is_healthy else FindingState.UNKNOWN
        return Finding(
            id=self.id,
            rule=self.rule,
            scope=self.scope,
            severity=self.severity,
            state=state if closed_at is None else FindingState.CLOSED,
            evidence=dict(self.evidence),
            first=self.first,
            last=self.last,
            opened_at=self.opened_at,
            closed_at=closed_at,
            hidden_by=self.hidden_by,
            openings=len(self.openings),
        )


class FindingsState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exported state of a tracker.

    Attributes:
        version: format of the state.
        at: time of the newest transitions, nanoseconds since 1970.
        clock: time of the newest judgement.
        second: sum of the times between judgements that count.
        tracked: every tracked finding.
        class_maxima: largest number of GPUs of each class of machines.
    """

    version: int = 1
    at: int = 0
    clock: int = 0
    second: float = 0.0
    tracked: tuple[TrackedFinding, ...] = ()
    class_maxima: dict[str, int] = {}


class LateStart(msgspec.Struct, frozen=True, kw_only=True):
    """Sender with late batches that are not judged yet.

    Attributes:
        cluster, sender: identity.
        start: earliest sending time of these batches, nanoseconds since 1970.
    """

    cluster: str
    sender: str
    start: int


class NumberedTransition(msgspec.Struct, frozen=True):
    """Transition as the registry keeps it.

    Attributes:
        number: position in the order of all transitions; increases by at least 1.
        transition: the transition.
    """

    number: int
    transition: FindingTransition


class FindingAcknowledgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Acknowledgement of a finding by an operator.

    Attributes:
        finding: id of the finding.
        at: when, nanoseconds since 1970.
        until: when it ends; notifications of the finding are left out before.
        actor: id of the token, or `local`.
        note: free text.
    """

    finding: str
    at: int
    until: int
    actor: str
    note: str = ""


class Silence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time without notifications of some findings. Their records do not change.

    Attributes:
        id: random id.
        rule: only findings of this rule; empty for all.
        scope: only findings about this subject and its parts, such as `cluster` or `cluster/machine`; empty for all.
        subject_kinds: only findings about subjects of these kinds, such as `machine`: a machine and a sender can have
            the same key. Empty for all.
        at: creation, nanoseconds since 1970.
        until: end.
        actor: id of the token, or `local`.
        note: free text.
    """

    id: str
    rule: str = ""
    scope: str = ""
    subject_kinds: tuple[str, ...] = ()
    at: int
    until: int
    actor: str
    note: str = ""


class FindingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for findings, newest opening first, then by id.

    Attributes:
        clusters: only subjects of these clusters; None for all, and for findings of the hub itself.
        rules: only these rules; empty for all.
        severities: only these severities; empty for all.
        scope: only this subject and its parts, as in `Silence`; None for all.
        subjects: only these subjects; None for all.
        is_closed: only closed ones, or only others; None for all.
        start, end: only findings that were open in this interval, nanoseconds since 1970, `end` excluded.
        after: only findings after this (opened_at, id) in the order.
        limit: maximum number.
    """

    clusters: tuple[str, ...] | None = None
    rules: tuple[str, ...] = ()
    severities: tuple[Severity, ...] = ()
    scope: str | None = None
    subjects: tuple[str, ...] | None = None
    is_closed: bool | None = None
    start: int = 0
    end: int = 2**63 - 1
    after: tuple[int, str] | None = None
    limit: int = 100


def cluster_of(scope: str) -> str | None:
    """Return the cluster of a subject, by its key; None for the hub itself."""
    return None if scope == HUB_SUBJECT else scope.partition("/")[0]
