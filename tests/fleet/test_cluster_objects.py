"""Newest state of Kubernetes objects over the reports of several collectors."""

import itertools

import pytest

from gpufleet.fleet.cluster_objects import OBJECT_TTL_NS, end_of, is_present, judged_at, newest_objects
from gpufleet.model.kubernetes import CopyState, CopyStatus
from gpufleet.model.stored.kubernetes import ObjectKind, ObjectReport, StoredCollector, StoredObject
from tests.support.cluster_objects import pod
from tests.support.holdings import T0


def report(phase: str | None, observed: int, reported: int | None = None, sender: str = "a") -> ObjectReport:
    """Return a report of a pod in a phase, or of its end."""
    return ObjectReport(
        sender=sender,
        uid="p",
        record=None if phase is None else pod("p", phase=phase),
        observed_at=T0 + observed,
        reported_at=T0 + (observed if reported is None else reported),
        ended_at=T0 + observed if phase is None else None,
    )


@pytest.mark.parametrize(
    ("reports", "phase", "known_at", "ended_at"),
    [
        ([report("x", 1)], "x", 1, None),
        ([report("x", 1), report(None, 5)], "x", 1, 5),
        ([report("x", 9), report(None, 5)], "x", 9, None),
        # within a sender, the order of the hub counts: its clock was set back
        ([report("x", 9, 10), report(None, 5, 11)], "x", 9, 5),
        # of several senders, the newest state counts, and a backlog is old
        ([report("x", 1, 90, "b"), report("y", 5)], "y", 5, None),
        ([report("x", 1), report(None, 5, sender="b")], "x", 1, 5),
        ([report(None, 5), report("y", 6, sender="b")], "y", 6, None),
        # the clock of a sender that is ahead counts as the time of receipt
        ([report("x", 900, 3), report("y", 5, sender="b")], "y", 5, None),
    ],
)  # fmt: skip
def test_newest_state(reports: list[ObjectReport], phase: str, known_at: int, ended_at: int | None) -> None:
    expected = StoredObject(
        cluster="c",
        record=pod("p", phase=phase),
        known_at=T0 + known_at,
        ended_at=None if ended_at is None else T0 + ended_at,
    )
    for order in itertools.permutations(reports):
        assert newest_objects("c", order) == (expected,)


def test_object_is_left_out_if_only_its_end_is_known() -> None:
    assert newest_objects("c", [report(None, 5)]) == ()


def test_object_that_is_not_repeated_ends_at_its_last_report() -> None:
    (one,) = newest_objects("c", [report("x", 1)])
    last = T0 + 1 + OBJECT_TTL_NS
    assert (is_present(one, last), end_of(one, last)) == (True, None)
    assert (is_present(one, last + 1), end_of(one, last + 1)) == (False, T0 + 1)


def collector(state: CopyState, since: int, known_at: int = 0, resource: str = "pods") -> StoredCollector:
    copy = CopyStatus(resource=resource, state=state, since=T0 + since)
    at = T0 + known_at
    return StoredCollector(
        sender=str(known_at), observed_at=at, reported_at=at, system_uid="", server_version="", copies=(copy,)
    )


@pytest.mark.parametrize(
    ("collectors", "expected"),
    [
        ([], 0),
        ([collector(CopyState.SYNCED, -900, -5)], -5),
        ([collector(CopyState.STALE, -900)], -900),
        ([collector(CopyState.FORBIDDEN, -900)], -900),
        ([collector(CopyState.NOT_SERVED, -900)], 0),
        ([collector(CopyState.STARTING, -900, -5)], 0),
        ([collector(CopyState.STALE, -900, resource="nodes")], 0),
        # an earlier leader, and another one with a connection
        ([collector(CopyState.STALE, -900), collector(CopyState.SYNCED, -9, -5)], -5),
        # an earlier leader that stopped, and another one without connection
        ([collector(CopyState.STALE, -900), collector(CopyState.SYNCED, -9, -950)], -900),
        ([collector(CopyState.STALE, -900), collector(CopyState.STARTING, -9)], -900),
        ([collector(CopyState.STALE, 900)], 0),  # a clock that is ahead
        ([collector(CopyState.STALE, -2 * OBJECT_TTL_NS, -OBJECT_TTL_NS - 1)], 0),  # no longer reports
    ],
)
def test_presence_is_judged_when_a_copy_was_last_current(collectors: list[StoredCollector], expected: int) -> None:
    assert judged_at(ObjectKind.POD, collectors, T0) == T0 + expected
