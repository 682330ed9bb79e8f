"""Notices: which transitions are notified, with regard to acknowledgements, silences and filters."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.notify.notices import EVERYTHING, MUTE_ENDED, Mutes, Notice, NoticeFilter, notice_of, reminders
from gpufleet.model.finding import Finding, Severity
from gpufleet.model.stored.findings import (
    FindingAcknowledgement,
    FindingTransition,
    Silence,
    TransitionKind,
    TransitionReason,
)
from tests.support.findings import make_finding, transitions_of

OPENED, CLOSED = 1000, 2000
FOUND = make_finding("gpu.lost", "east/m1/gpu/GPU-1", OPENED)
OVER = msgspec.structs.replace(make_finding("gpu.lost", "east/m1/gpu/GPU-1", OPENED, closed_at=CLOSED))


def silence(at: int, until: int, *, rule: str = "", scope: str = "") -> Silence:
    return Silence(id=f"{at}-{until}", rule=rule, scope=scope, at=at, until=until, actor="local")


def acknowledgement(at: int, until: int) -> dict[str, FindingAcknowledgement]:
    return {FOUND.id: FindingAcknowledgement(finding=FOUND.id, at=at, until=until, actor="local")}


def notice(transition: FindingTransition, now: int, *silences: Silence, reminded: int = 0) -> Notice | None:
    return notice_of(transition, Mutes(now, silences), reminded)


def test_each_transition_is_notified_with_its_own_id() -> None:
    opened, closed = transitions_of(OVER)
    worse = msgspec.structs.replace(FOUND, severity=Severity.CRITICAL)
    escalated = FindingTransition(kind=TransitionKind.ESCALATED, at=1500, reason=TransitionReason.FIRING, finding=worse)
    notices = [notice(one, 3000) for one in (opened, escalated, closed)]
    assert [one and (one.id, one.kind, one.at, one.reason) for one in notices] == [
        (f"{FOUND.id}.opened", TransitionKind.OPENED, OPENED, "firing"),
        (f"{FOUND.id}.escalated.critical", TransitionKind.ESCALATED, 1500, "firing"),
        (f"{FOUND.id}.closed", TransitionKind.CLOSED, CLOSED, "healthy"),
    ]


@pytest.mark.parametrize(
    ("rule", "scope", "is_silenced"),
    [
        ("", "", True),
        ("gpu.lost", "", True),
        ("gpu.hung", "", False),
        ("", "east", True),
        ("", "eas", False),
        ("", "east/m1", True),
        ("", "east/m1/gpu/GPU-1", True),
        ("", "east/m1/gpu/GPU-2", False),
        ("gpu.lost", "west", False),
    ],
)
def test_silence_applies_to_its_rule_and_subject(rule: str, scope: str, is_silenced: bool) -> None:
    mutes = Mutes(1500, [silence(500, 1600, rule=rule, scope=scope)])
    assert mutes.is_muted(FOUND) is is_silenced


def test_silence_has_a_start_and_an_end() -> None:
    mutes = Mutes(1500, [silence(1000, 1200)])
    assert [mutes.is_silenced(FOUND, at) for at in (999, 1000, 1199, 1200)] == [False, True, True, False]


def test_opening_is_left_out_while_muted() -> None:
    (opened,) = transitions_of(FOUND)
    assert notice(opened, 1100, silence(500, 1200)) is None  # muted now
    assert notice(opened, 1300, silence(500, 1200)) is None  # muted when it opened: a reminder follows
    assert notice(opened, 1300, silence(500, 1200), reminded=1250)  # no reminder follows: the end is handled
    assert notice(opened, 1300, silence(500, 900))
    acknowledged = Mutes(1300, (), acknowledgement(1100, 1400))
    assert notice_of(opened, acknowledged, 0) is None  # delivered late, and acknowledged meanwhile
    assert notice_of(opened, Mutes(1300, (), acknowledgement(1100, 1200)), 0)


@pytest.mark.parametrize(
    ("silences", "is_notified"),
    [
        ([], True),
        ([(500, 3000)], False),
        ([(500, CLOSED)], True),
        ([(OPENED, 1500), (1400, 3000)], False),
        ([(1400, 3000), (500, 1400)], False),
        ([(500, 1400), (1401, 3000)], True),
        ([(OPENED + 1, 3000)], True),
    ],
)
def test_closing_is_left_out_if_silences_covered_the_finding(
    silences: Sequence[tuple[int, int]], is_notified: bool
) -> None:
    closed = transitions_of(OVER)[1]
    assert (notice(closed, 2500, *(silence(*one) for one in silences)) is not None) is is_notified


def test_closing_of_acknowledged_finding_is_notified() -> None:
    closed = transitions_of(OVER)[1]
    assert notice_of(closed, Mutes(2500, (), acknowledgement(1100, 9000)), 0)


def test_open_finding_is_notified_again_when_its_mutes_end() -> None:
    acknowledged = msgspec.structs.replace(FOUND, acknowledged_until=1500)

    def found(finding: Finding, now: int, *silences: Silence, since: int = 1400) -> list[tuple[str, str]]:
        return [(one.id, one.reason) for one in reminders([finding], Mutes(now, silences), since)]

    expected = [(f"{FOUND.id}.opened.1500", MUTE_ENDED)]
    assert found(acknowledged, 1600) == found(FOUND, 1600, silence(500, 1500)) == expected
    assert found(acknowledged, 1499) == []  # not yet
    assert found(acknowledged, 1700, since=1500) == []  # handled before
    assert found(acknowledged, 1600, silence(1450, 1800)) == []  # muted otherwise
    assert found(FOUND, 1600, silence(500, OPENED), since=900) == []  # ended before it opened
    assert found(FOUND, 1600, silence(1500, 1500)) == []  # never in force


def test_new_receiver_gets_all_open_findings_that_are_not_muted() -> None:
    other = make_finding("node.missing", "west/m9", 100)
    notices = reminders([FOUND, other], Mutes(1600, [silence(0, 2000, scope="west")]), EVERYTHING)
    assert [(one.id, one.at, one.reason) for one in notices] == [(f"{FOUND.id}.opened", OPENED, "firing")]


def test_filter_selects_severity_cluster_and_rule() -> None:
    critical = msgspec.structs.replace(FOUND, severity=Severity.CRITICAL)
    hub = make_finding("hub.flush_lag", "", OPENED)
    assert [NoticeFilter().accepts(one) for one in (FOUND, critical, hub)] == [True, True, True]
    assert [NoticeFilter(min_severity=Severity.CRITICAL).accepts(one) for one in (FOUND, critical)] == [False, True]
    assert [NoticeFilter(clusters={"east"}).accepts(one) for one in (FOUND, hub)] == [True, False]
    assert [NoticeFilter(rules={"hub.flush_lag"}).accepts(one) for one in (FOUND, hub)] == [False, True]


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), max_size=4),
    opened=st.integers(1, 40),
    commit=st.integers(0, 20),
    checks=st.lists(st.integers(1, 20), min_size=1, max_size=12),
)
def test_open_finding_is_never_lost_to_silences(
    spans: list[tuple[int, int]], opened: int, commit: int, checks: list[int]
) -> None:
    """After the last silence, the receiver was notified of a finding that is still open, and of nothing while muted."""
    silences = [silence(at, at + length) for at, length in spans]
    finding = make_finding("gpu.lost", "east/m1", opened)
    (transition,) = transitions_of(finding)
    now, reminded, ids, is_read = 0, 0, set[str](), False
    for step in (*checks, 200):
        now += step
        mutes = Mutes(now, silences)
        found: list[Notice] = []
        if is_read:
            found = reminders([finding], mutes, reminded)
        elif now >= opened + commit:
            one = notice_of(transition, mutes, reminded)
            found = ([] if one is None else [one]) + reminders([finding], mutes, reminded)
            is_read = True
        assert not (found and mutes.is_muted(finding))
        assert not ids & {one.id for one in found}
        ids |= {one.id for one in found}
        reminded = now
    assert ids
