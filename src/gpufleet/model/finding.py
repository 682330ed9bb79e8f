"""Finding: a problem reported by a rule, with its evidence."""

import enum

import msgspec


class Severity(enum.StrEnum):
    """Severity of a finding."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class FindingState(enum.StrEnum):
    """State of a finding. A rule that could not run yields unknown, never closed."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Finding of a rule.

    Attributes:
        rule: name of the rule.
        scope: cluster, machine or view key.
        severity: severity.
        state: current state.
        evidence: observed values by name.
        first, last: first and last observation, nanoseconds since 1970.
        acknowledged_until: end of the acknowledgement, nanoseconds since 1970, or None.
    """

    rule: str
    scope: str
    severity: Severity
    state: FindingState
    evidence: dict[str, str]
    first: int
    last: int
    acknowledged_until: int | None = None
