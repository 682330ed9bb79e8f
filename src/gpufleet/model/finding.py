"""Finding: a problem reported by a rule, with its evidence."""

import enum

import msgspec


class Severity(enum.StrEnum):
    """Severity of a finding."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class RuleScope(enum.StrEnum):
    """Kind of subject that a rule judges, outermost first."""

    HUB = "hub"
    CLUSTER = "cluster"
    MACHINE = "machine"
    SENDER = "sender"
    ALLOCATION = "allocation"
    DEVICE = "device"


class FindingState(enum.StrEnum):
    """State of a finding. A rule that could not run yields unknown, never closed."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Finding of a rule.

    Attributes:
        id: unique for each opening; the same in every report about it.
        rule: name of the rule.
        scope: key of the subject: cluster, machine, sender, allocation or device.
        severity: severity; it never falls while the finding is open.
        state: current state.
        evidence: observed values by name, of the subject only.
        first, last: first and last observation, nanoseconds since 1970.
        opened_at, closed_at: times of its transitions; `closed_at` is None until it is closed.
        hidden_by: rule that explains this finding now, such as `node.missing`, or empty.
        openings: number of openings of this rule and subject in the last hour, this finding included.
        acknowledged_until: end of the acknowledgement, nanoseconds since 1970, or None.
    """

    id: str
    rule: str
    scope: str
    severity: Severity
    state: FindingState
    evidence: dict[str, str]
    first: int
    last: int
    opened_at: int
    closed_at: int | None = None
    hidden_by: str = ""
    openings: int = 1
    acknowledged_until: int | None = None
