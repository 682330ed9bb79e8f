"""A finding: what a rule says is wrong, with its evidence."""

import enum

import msgspec


class Severity(enum.StrEnum):
    """How bad it is."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class FindingState(enum.StrEnum):
    """Whether it still holds. A rule that could not run says unknown, never closed."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding.

    Attributes:
        rule: name of the rule.
        scope: what it is about: cluster, machine or view key.
        severity: how bad.
        state: whether it holds.
        evidence: what was seen, by name.
        first, last: nanoseconds since 1970, when it was first and last seen.
        acknowledged_until: silenced until then, or None.
    """

    rule: str
    scope: str
    severity: Severity
    state: FindingState
    evidence: dict[str, str]
    first: int
    last: int
    acknowledged_until: int | None = None
