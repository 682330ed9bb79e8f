"""Notices: the transitions of findings that a receiver is notified of, with regard to acknowledgements and silences.

- An opening or escalation is left out if the finding is muted now, or was muted at the time of the transition.
- When a mute ends and the finding is still open and not otherwise muted, it is notified as opened, with another id.
- A closing is left out only if silences covered the whole time that the finding was open. So a receiver that was
  notified of an opening is always notified of the closing.

The functions have no I/O. The id of a notice depends on the finding and the transition only: a repeated notice has the
same id.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from gpufleet.hub.query.finding_records import is_silenced
from gpufleet.model.finding import Finding, Severity
from gpufleet.model.stored.findings import (
    FindingAcknowledgement,
    FindingTransition,
    Silence,
    TransitionKind,
    TransitionReason,
    cluster_of,
)

MUTE_ENDED = "mute_ended"
"""Reason of a notice about a finding that is still open after an acknowledgement or silence."""

EVERYTHING = 0
"""Instant for `reminders` of a new receiver: every open finding is reported."""

_RANK = {severity: rank for rank, severity in enumerate((Severity.INFO, Severity.WARNING, Severity.CRITICAL))}


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """Message to a receiver about a finding.

    Attributes:
        id: unique for the finding and the transition.
        kind: what happened.
        at: when, nanoseconds since 1970.
        reason: a `TransitionReason`, or `MUTE_ENDED`.
        finding: the finding after the transition.
    """

    id: str
    kind: TransitionKind
    at: int
    reason: str
    finding: Finding


class Mutes:
    """Silences and acknowledgements, as of an instant.

    Attributes:
        now: the instant, nanoseconds since 1970.
    """

    def __init__(
        self,
        now: int,
        silences: Iterable[Silence],
        acknowledgements: Mapping[str, FindingAcknowledgement] | None = None,
    ) -> None:
        """Take silences, ended ones included, and the acknowledgements of findings by id."""
        self.now = now
        self._acknowledgements = acknowledgements or {}
        self._silences: dict[str, list[Silence]] = defaultdict(list)
        for one in silences:
            self._silences[one.scope].append(one)

    def is_silenced(self, finding: Finding, at: int) -> bool:
        """Return whether a silence applies to the finding at an instant."""
        return any(one.at <= at < one.until for one in self._matching(finding))

    def is_muted(self, finding: Finding) -> bool:
        """Return whether the finding is acknowledged or silenced now."""
        until = finding.acknowledged_until or 0
        acknowledgement = self._acknowledgements.get(finding.id)
        if acknowledgement is not None:
            until = max(until, acknowledgement.until)
        return until > self.now or self.is_silenced(finding, self.now)

    def is_muted_transition(self, transition: FindingTransition, reminded: int) -> bool:
        """Return whether the finding is muted now, or was at the time of the transition by a mute that ends later.

        Args:
            transition: the transition.
            reminded: instant up to which ends of mutes are handled. No reminder follows a mute that ended before.
        """
        finding, at = transition.finding, transition.at
        acknowledgement = self._acknowledgements.get(finding.id)
        mutes: list[Silence | FindingAcknowledgement] = list(self._matching(finding))
        if acknowledgement is not None:
            mutes.append(acknowledgement)
        return self.is_muted(finding) or any(one.at <= at < one.until and one.until > reminded for one in mutes)

    def covers(self, finding: Finding) -> bool:
        """Return whether silences covered the whole time from the opening to the closing of a finding."""
        assert finding.closed_at is not None
        covered = finding.opened_at
        for one in sorted(self._matching(finding), key=lambda one: one.at):
            if one.at > covered:
                break
            covered = max(covered, one.until)
        return covered > finding.closed_at

    def newest_end(self, finding: Finding, since: int) -> int | None:
        """Return when the last of the finding's mutes ended that ended after `since` and before or at `now`."""
        ends = [one.until for one in self._matching(finding) if one.until > finding.opened_at and one.until > one.at]
        ends.append(finding.acknowledged_until or 0)
        return max((end for end in ends if since < end <= self.now), default=None)

    def _matching(self, finding: Finding) -> Iterator[Silence]:
        parts = finding.scope.split("/")
        scopes = {"", *("/".join(parts[:count]) for count in range(1, len(parts) + 1))}
        for scope in scopes & self._silences.keys():
            yield from (one for one in self._silences[scope] if is_silenced(finding, one))


class NoticeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Findings that a receiver is notified of.

    Attributes:
        min_severity: only findings of at least this severity.
        clusters: only findings of these clusters; empty for all, and for findings of the hub.
        rules: only findings of these rules; empty for all.
    """

    min_severity: Severity = Severity.INFO
    clusters: Collection[str] = frozenset()
    rules: Collection[str] = frozenset()

    def accepts(self, finding: Finding) -> bool:
        """Return whether the receiver is notified of the finding. The severity of a finding never falls."""
        return (
            _RANK[finding.severity] >= _RANK[self.min_severity]
            and (not self.clusters or cluster_of(finding.scope) in self.clusters)
            and (not self.rules or finding.rule in self.rules)
        )


def lower_severities(severity: Severity) -> tuple[Severity, ...]:
    """Return the severities below one."""
    return tuple(one for one in _RANK if _RANK[one] < _RANK[severity])


def notice_of(transition: FindingTransition, mutes: Mutes, reminded: int) -> Notice | None:
    """Return the notice about a transition, or None if it is left out; see `Mutes.is_muted_transition`."""
    finding, kind = transition.finding, transition.kind
    if kind is TransitionKind.CLOSED:
        is_left_out = mutes.covers(finding)
    else:
        is_left_out = mutes.is_muted_transition(transition, reminded)
    if is_left_out:
        return None
    suffix = f"{kind.value}.{finding.severity.value}" if kind is TransitionKind.ESCALATED else kind.value
    return Notice(
        id=f"{finding.id}.{suffix}", kind=kind, at=transition.at, reason=transition.reason.value, finding=finding
    )


def reminders(open_findings: Sequence[Finding], mutes: Mutes, since: int) -> list[Notice]:
    """Return the notices about open findings that are not muted, and whose mutes ended between `since` and now.

    With `EVERYTHING` as `since`, these are the notices of the openings of all open findings that are not muted.
    """
    notices = []
    for finding in open_findings:
        if since == EVERYTHING:
            suffix, at, reason = TransitionKind.OPENED.value, finding.opened_at, TransitionReason.FIRING.value
        else:
            end = mutes.newest_end(finding, since)
            if end is None:
                continue
            suffix, at, reason = f"{TransitionKind.OPENED.value}.{end}", end, MUTE_ENDED
        if not mutes.is_muted(finding):
            id_ = f"{finding.id}.{suffix}"
            notices.append(Notice(id=id_, kind=TransitionKind.OPENED, at=at, reason=reason, finding=finding))
    return notices
