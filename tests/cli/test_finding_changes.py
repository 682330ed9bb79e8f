"""Changes of findings between lists, and the loop that prints them."""

import datetime as dt
from collections.abc import Callable, Sequence

import msgspec
import pytest

from gpufleet.cli.fetch import HttpError
from gpufleet.cli.finding_changes import (
    LATE_EVERY,
    LATE_OVERLAP,
    MAX_BACKOFF_SECONDS,
    OVERLAP,
    FindingChanges,
    watch_findings,
)
from gpufleet.cli.options import CommandError
from gpufleet.cli.query.findings import evaluation_text
from gpufleet.hub.query.finding_records import finding_record
from gpufleet.model.api.findings import EvaluationRecord, FindingPage, FindingRecord
from gpufleet.model.finding import Severity
from gpufleet.model.time import NANOS, to_datetime
from tests.support.findings import make_finding

START = 1_700_000_000


def record(number: int, opened: int, closed: int | None = None, severity: Severity = Severity.WARNING) -> FindingRecord:
    """Return a finding that opened and closed these seconds after the start."""
    found = make_finding(
        "gpu.lost",
        f"west/m-1/gpu/GPU-{number}",
        (START + opened) * NANOS,
        closed_at=None if closed is None else (START + closed) * NANOS,
        severity=severity,
        evidence={"lost": "1\x1b[2J"},
    )
    return finding_record(found, (START + 60) * NANOS, nodes={"m-1": "node-a"}, acknowledgement=None, silences=())


def page(at: int, *items: FindingRecord) -> FindingPage:
    """Return a list as of a time in seconds after the start."""
    return FindingPage(at=to_datetime((START + at) * NANOS), evaluation=evaluation(at), items=items, next=None)


def evaluation(at: int, age_seconds: float = 5) -> EvaluationRecord:
    """Return an evaluation of that age as of a time in seconds after the start."""
    evaluated_at = to_datetime(int(START + at - age_seconds) * NANOS)
    return EvaluationRecord(evaluated_at=evaluated_at, age_seconds=age_seconds, is_current=age_seconds <= 180)


def summaries(lines: Sequence[str]) -> list[str]:
    """Return what happened to which GPU, of each line."""
    return [f"{line.split()[2]} {line.split()[5].rpartition('GPU-')[2]}" for line in lines]


def test_each_change_is_reported_once() -> None:
    changes = FindingChanges(page(0, record(1, -60), record(2, -30)), page(0))
    critical = record(2, -30, severity=Severity.CRITICAL)
    assert summaries(list(changes.next(page(10, record(3, 5), record(1, -60, 8), critical)))) == [
        "escalated 2",
        "opened 3",
        "closed 1",
    ]
    again = page(20, record(3, 5), record(1, -60, 8), critical)
    assert list(changes.next(again)) == []


def test_finding_that_opens_and_closes_between_lists_is_reported() -> None:
    changes = FindingChanges(page(0), page(0))
    assert summaries(list(changes.next(page(100, record(1, 10, 20))))) == ["opened 1", "closed 1"]
    assert list(changes.next(page(110, record(1, 10, 20)))) == []


def test_past_findings_of_the_overlap_are_no_changes() -> None:
    changes = FindingChanges(page(0), page(0, record(1, -100, -50)))
    assert list(changes.next(page(10, record(1, -100, -50)))) == []


def test_finding_of_late_data_is_reported_with_its_own_times() -> None:
    changes = FindingChanges(page(0), page(0))
    late = record(1, -7200, -3600)
    assert summaries(list(changes.next(page(10, late)))) == ["opened 1", "closed 1"]
    assert list(changes.next(page(20))) == []
    assert list(changes.next(page(30, late))) == []


def test_finding_that_closed_while_the_watch_began_is_reported() -> None:
    changes = FindingChanges(page(0, record(1, -60)), page(0, record(1, -60, 0), record(2, 0)))
    again = page(10, record(1, -60, 0), record(2, 0))
    assert summaries(list(changes.next(again))) == ["closed 1", "opened 2"]


def test_watch_lists_the_findings_of_late_data_at_intervals() -> None:
    late, after = record(1, -7200, -3600), int(LATE_EVERY.total_seconds())
    pages = [page(0), page(0), page(10), page(after), page(after + 10, late), page(after + 20)]
    fetch, requested = scripted(*pages)
    lines = list[str]()
    watch_findings(fetch, 10, Clockwork(4), lines.append, lambda _: None)
    starts = [page(0).at - LATE_OVERLAP, page(0).at - OVERLAP, page(10).at - OVERLAP]
    assert requested == [None, *starts, page(after).at - LATE_OVERLAP, page(after + 10).at - OVERLAP]
    assert summaries(lines) == ["opened 1", "closed 1"]


def test_finding_that_was_stored_late_is_reported() -> None:
    changes = FindingChanges(page(0), page(0))
    assert summaries(list(changes.next(page(10, record(1, -2))))) == ["opened 1"]


def test_line_has_time_rule_subject_evidence_and_id() -> None:
    one = record(1, 5)
    (line,) = FindingChanges(page(0), page(0)).next(page(10, one))
    assert line == (f"2023-11-14 22:13:25Z opened warning gpu.lost node-a/GPU-1 in west (lost=1?[2J) {one.id[:8]}")


class Clockwork:
    """Waits of the loop, without time. It is interrupted after the given number of waits."""

    def __init__(self, waits: int) -> None:
        self.left = waits
        self.seconds: list[float] = []

    def wait(self, timeout: float) -> bool:
        self.seconds.append(timeout)
        self.left -= 1
        return self.left < 0


def scripted(*answers: FindingPage | Exception) -> tuple[Callable[[dt.datetime | None], FindingPage], list[object]]:
    """Return a fetch with these answers in turn, and the instants that it is called with."""
    left, requested = list(answers), list[object]()

    def fetch(since: dt.datetime | None) -> FindingPage:
        requested.append(since)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return fetch, requested


def test_watch_backs_off_while_the_hub_is_away_and_misses_nothing() -> None:
    away = CommandError("cannot query")
    answers: list[FindingPage | Exception] = [
        *[page(0)] * 2,
        *[away] * 4,
        HttpError("busy", 503),
        page(900, record(1, 5), record(2, 6, 50)),
        page(915),
    ]
    fetch, requested = scripted(*answers)
    waits, lines, notes = Clockwork(7), list[str](), list[str]()
    watch_findings(fetch, 10, waits, lines.append, notes.append)
    assert waits.seconds == [10, 20, 40, MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, 10, 10]
    assert set(requested[2:8]) == {page(0).at - OVERLAP}
    assert summaries(lines) == ["opened 1", "opened 2", "closed 2"]
    assert len(notes) == 3  # the number of open findings, the outage, its end


def test_old_evaluation_is_reported_once() -> None:
    pages = [msgspec.structs.replace(page(at), evaluation=evaluation(at, age)) for at, age in ((0, 300), (10, 310))]
    fetch, _ = scripted(pages[0], *pages, page(20), page(30))
    notes = list[str]()
    watch_findings(fetch, 10, Clockwork(3), lambda _: None, notes.append)
    assert notes[1:] == [evaluation_text(one.evaluation) for one in (pages[0], page(20))]


def test_long_interval_is_not_shortened_by_an_outage() -> None:
    fetch, _ = scripted(page(0), page(0), CommandError("away"), page(300))
    waits = Clockwork(2)
    watch_findings(fetch, 120, waits, lambda _: None, lambda _: None)
    assert waits.seconds == [120, 120, 120]


@pytest.mark.parametrize(
    "answers",
    [
        [CommandError("away")],
        [page(0), CommandError("away")],
        [page(0), page(0), HttpError("revoked", 401)],
        [page(0), page(0), HttpError("unknown", 400)],
    ],
)
def test_first_failure_and_rejections_end_the_watch(answers: list[FindingPage | Exception]) -> None:
    fetch, _ = scripted(*answers)
    with pytest.raises(CommandError):
        watch_findings(fetch, 10, Clockwork(5), lambda _: None, lambda _: None)


def test_hostile_names_do_not_control_the_terminal() -> None:
    hostile = msgspec.structs.replace(record(1, 5), node="\x1b]0;owned\x07\u202e")
    (line,) = FindingChanges(page(0), page(0)).next(page(10, hostile))
    assert line.isprintable()
