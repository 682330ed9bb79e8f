"""Answers about findings, and bodies of their acknowledgements and silences."""

import datetime as dt
import enum
from typing import Annotated

import msgspec

from gpufleet.model.finding import FindingState, Severity
from gpufleet.model.stored.findings import TransitionKind, TransitionReason

MAX_NOTE_BYTES = 1024
"""Maximum length of a note, in UTF-8."""

MAX_SUBJECT_CHARACTERS = 1024
"""Maximum length of the key of a subject."""

MAX_SCOPES = 6
"""Maximum number of kinds of subjects in a silence: each kind once."""

Note = Annotated[str, msgspec.Meta(max_length=MAX_NOTE_BYTES)]
"""Free text of an operator."""


class FindingStatus(enum.StrEnum):
    """Status by which findings are selected."""

    OPEN = "open"  # the rule fires, or the subject is healthy for less than the closing time
    UNKNOWN = "unknown"  # not closed; the newest verdict is unknown
    ACKNOWLEDGED = "acknowledged"  # not closed; an acknowledgement is in force
    CLOSED = "closed"


class EvaluationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Evaluation of the rules, on which live values of findings depend.

    Attributes:
        evaluated_at: when the rules were last evaluated; None if they were not since the hub's start.
        age_seconds: time since then.
        is_current: whether that is at most three configured intervals ago. If not, nothing is known about the time
            since.
        failure: without `evaluated_at`, why nothing is evaluated. Otherwise what failed at the newest evaluation, or
            empty. A tenant gets no reasons of the hub.
        untracked: subjects for which a rule fires without a finding, because the limit on tracked findings is reached.
            None without `evaluated_at`, and for a tenant.
    """

    evaluated_at: dt.datetime | None
    age_seconds: float | None
    is_current: bool
    failure: str = ""
    untracked: int | None = None


class AcknowledgementRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Newest acknowledgement of a finding.

    Attributes:
        at: time of the acknowledgement.
        until: its end, which can be in the past.
        by: id of the token, or `local`.
        note: free text.
    """

    at: dt.datetime
    until: dt.datetime
    by: str
    note: str = ""


class FindingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Finding in an answer.

    Attributes:
        id: unique for each opening.
        rule, family: the rule.
        scope: kind of the subject: hub, cluster, machine, sender, allocation or device.
        subject: key of the subject, such as `cluster/machine`; empty for the hub.
        cluster: cluster of the subject; None for the hub.
        machine, node: machine of a machine or device, by the hub's id and by name.
        device: id of the device, as in `/v1/gpus`.
        sender, allocation: name of the sender, id of the allocation.
        severity: severity; it never falls while the finding is open.
        state: current state; `unknown` if the newest verdict about an open finding is unknown.
        explanation, action: state of a subject for which the rule fires, and the first step of an operator. Empty if
            this version has no such rule.
        evidence: observed values by name, of the subject only.
        first, last: first and last observation.
        opened_at, closed_at: when it opened and closed.
        duration_seconds: from its opening to its closing, or to now.
        hidden_by: rule that explains this finding now, or empty.
        openings: openings of this rule and subject in the last hour, this one included.
        acknowledged: whether an acknowledgement is in force.
        acknowledgement: the newest acknowledgement, ended or not.
        silenced_until: end of the silences that apply now, or None.
    """

    id: str
    rule: str
    family: str
    scope: str
    subject: str
    cluster: str | None
    machine: str | None
    node: str | None
    device: str | None
    sender: str | None
    allocation: str | None
    severity: Severity
    state: FindingState
    explanation: str
    action: str
    evidence: dict[str, str]
    first: dt.datetime
    last: dt.datetime
    opened_at: dt.datetime
    closed_at: dt.datetime | None
    duration_seconds: float
    hidden_by: str
    openings: int
    acknowledged: bool
    acknowledgement: AcknowledgementRecord | None
    silenced_until: dt.datetime | None


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Transition of a finding.

    Attributes:
        at: time of the transition.
        kind, reason: kind of the transition, and its cause.
        severity, evidence: of the finding at that time.
    """

    at: dt.datetime
    kind: TransitionKind
    reason: TransitionReason
    severity: Severity
    evidence: dict[str, str]


class FindingDetail(FindingRecord, frozen=True, kw_only=True):
    """Answer of `GET /v1/findings/{id}`.

    Attributes:
        evaluation: evaluation of the rules.
        timeline: transitions, oldest first.
    """

    evaluation: EvaluationRecord
    timeline: tuple[TimelineEntry, ...]


class FindingPage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/findings`, newest opening first.

    Attributes:
        at: time of the answer, by the hub's clock.
        evaluation: evaluation of the rules.
        items: findings; a page can have fewer than the limit, or none, and still have a next page.
        next: cursor of the next page, or None.
    """

    at: dt.datetime
    evaluation: EvaluationRecord
    items: tuple[FindingRecord, ...]
    next: str | None


class AcknowledgementSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `PUT /v1/findings/{id}/acknowledgement`.

    Attributes:
        until: end.
        duration: time until the end, such as `4h`; in place of `until`.
        note: free text.
    """

    until: dt.datetime | None = None
    duration: str | None = None
    note: Note = ""


class SilenceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /v1/silences`. At least one of `rule` and `subject` is set.

    Attributes:
        rule: only findings of this rule.
        subject: only findings about this subject and its parts, by key.
        scopes: only findings about subjects of these kinds, such as `machine`. Required for a `subject` within a
            cluster unless `rule` is set: a machine and a sender can have the same key.
        until, duration, note: as in `AcknowledgementSpec`.
    """

    rule: str | None = None
    subject: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SUBJECT_CHARACTERS)] | None = None
    scopes: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_SCOPES)] = ()
    until: dt.datetime | None = None
    duration: str | None = None
    note: Note = ""


class SilenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Silence in an answer.

    Attributes:
        id: random id.
        rule, subject: as in `SilenceSpec`; None for all.
        scopes: as in `SilenceSpec`; empty for all.
        at: time of its creation.
        until: its end, which can be in the past.
        by: id of the token, or `local`.
        note: free text.
    """

    id: str
    rule: str | None
    subject: str | None
    scopes: tuple[str, ...]
    at: dt.datetime
    until: dt.datetime
    by: str
    note: str
