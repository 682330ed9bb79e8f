"""Changes between successive lists of findings: openings, escalations and closings."""

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Protocol

from gpufleet.cli.fetch import HttpError
from gpufleet.cli.lookup import SHORT_FINDING_DIGITS
from gpufleet.cli.options import CommandError
from gpufleet.cli.query.findings import evaluation_text, evidence_text, subject_cell
from gpufleet.model.api.findings import FindingPage, FindingRecord
from gpufleet.model.finding import FindingState
from gpufleet.model.text import printable

OVERLAP = dt.timedelta(minutes=5)
"""Time before the previous list that is listed again: findings are stored after the instant of their evaluation."""

LATE_OVERLAP = dt.timedelta(hours=36)
"""Time before the previous list that is listed at intervals, for findings of late data.

The hub judges at most the newest 24 h of a late interval, and up to 9 h after the data arrived.
"""

LATE_EVERY = dt.timedelta(minutes=5)
"""Interval between these lists."""

MAX_BACKOFF_SECONDS = 60.0

TOO_MANY_REQUESTS, SERVER_ERROR = 429, 500

Fetch = Callable[[dt.datetime | None], FindingPage]
"""Returns the findings that were open after an instant; for None, the findings that are not closed now."""


class Interrupted(Protocol):
    """Event that ends the watch, such as `threading.Event`."""

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return whether the event is set."""
        ...


class FindingChanges:
    """Changes between successive lists of findings. A finding of the first lists is not a change."""

    def __init__(self, first: FindingPage, past: FindingPage) -> None:
        """Take the findings that are not closed, and a later list with those of the last `LATE_OVERLAP`."""
        self._known = {one.id: one for one in past.items if one.state is FindingState.CLOSED}
        self._known |= {one.id: one for one in first.items}

    def next(self, page: FindingPage) -> Iterator[str]:
        """Yield a line for each change since the previous list, oldest first."""
        found = []
        for one in page.items:
            before = self._known.get(one.id)
            is_closed = one.state is FindingState.CLOSED
            if before is None:
                found.append((one.opened_at, "opened", one))
            elif before.severity is not one.severity:
                found.append((one.last, "escalated", one))
            if is_closed and (before is None or before.state is not FindingState.CLOSED):
                assert one.closed_at is not None
                found.append((one.closed_at, "closed", one))
            self._known[one.id] = one
        self._drop_before(page.at - LATE_OVERLAP)
        found.sort(key=lambda change: change[0])
        return (change_text(at, what, one) for at, what, one in found)

    def _drop_before(self, start: dt.datetime) -> None:
        """Drop the findings that closed before the start of every later list."""
        every = self._known.items()
        self._known = {id_: one for id_, one in every if one.closed_at is None or one.closed_at >= start}


def change_text(at: dt.datetime, what: str, one: FindingRecord) -> str:
    """Return the line of a change."""
    subject = subject_cell(one)
    place = f" in {one.cluster}" if one.cluster and one.cluster != subject.text else ""
    evidence = f" ({evidence_text(one.evidence)})" if one.evidence and what != "closed" else ""
    id_ = one.id[:SHORT_FINDING_DIGITS]
    return printable(
        f"{at:%Y-%m-%d %H:%M:%SZ} {what} {one.severity.value} {one.rule} {subject.text}{place}{evidence} {id_}"
    )


def watch_findings(
    fetch: Fetch,
    interval_seconds: float,
    interrupted: Interrupted,
    write: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Write a line for each change until interrupted. While the hub does not respond, the interval doubles.

    Args:
        fetch: returns a list of findings.
        interval_seconds: time between two requests.
        interrupted: ends the watch.
        write: receives the line of a change.
        warn: receives messages about the hub, and about an evaluation of the rules that is not current.

    Raises:
        CommandError: if the first request fails, or the hub rejects a later one.
    """
    page = fetch(None)
    past = fetch(page.at - LATE_OVERLAP)
    changes, late_at = FindingChanges(page, past), page.at
    warn(f"open and unknown findings: {len(page.items)}; printing changes")
    is_current = page.evaluation.is_current
    if not is_current:
        warn(evaluation_text(page.evaluation))
    failures = 0
    while not interrupted.wait(min(interval_seconds * 2**failures, max(interval_seconds, MAX_BACKOFF_SECONDS))):
        is_late_due = page.at - late_at >= LATE_EVERY
        try:
            page = fetch(page.at - (LATE_OVERLAP if is_late_due else OVERLAP))
        except CommandError as error:
            if isinstance(error, HttpError) and error.status < SERVER_ERROR and error.status != TOO_MANY_REQUESTS:
                raise
            if not failures:
                warn(f"{error}; retrying")
            failures = min(failures + 1, 10)
            continue
        late_at = page.at if is_late_due else late_at
        if failures:
            warn("the hub responds again")
            failures = 0
        if page.evaluation.is_current is not is_current:
            is_current = page.evaluation.is_current
            warn(evaluation_text(page.evaluation))
        for line in changes.next(page):
            write(line)
