"""What a check says."""

import enum

import msgspec


class Verdict(enum.StrEnum):
    """What a check came to."""

    OK = "ok"
    WARNING = "warning"  # works, with something missing that `found` names
    FAILED = "failed"  # readings are missing until it is mended
    UNKNOWN = "unknown"  # the check could not be made
    NOT_APPLICABLE = "not_applicable"  # this node has no need of it


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One prerequisite.

    Attributes:
        name: of the check.
        verdict: what it came to.
        proves: what holds when it is ok.
        found: what was seen.
        mend: what to do about it; empty where there is nothing to do.
    """

    name: str
    verdict: Verdict
    proves: str
    found: str
    mend: str = ""
