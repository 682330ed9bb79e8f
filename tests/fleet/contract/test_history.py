"""Verdicts of a cluster over time."""

import msgspec

from gpufleet.fleet.contract.check import ItemStatus
from gpufleet.fleet.contract.history import ClusterHistory, StatusSpan, update_history
from gpufleet.fleet.contract.verdict import (
    ClusterVerdict,
    ItemVerdict,
    RequirementCounts,
)
from gpufleet.model.contract import ClusterVisibility

MET, NOT_MET, UNKNOWN = ItemStatus.MET, ItemStatus.NOT_MET, ItemStatus.UNKNOWN
ITEM = "freshness.clock"


def verdict(at: int, status: ItemStatus, visibility: ClusterVisibility = ClusterVisibility.VISIBLE) -> ClusterVerdict:
    return ClusterVerdict(
        cluster="east",
        at=at,
        versions=("1.0",),
        judged_tier=None,
        is_declared=False,
        reached_tier=None,
        visibility=visibility,
        must=RequirementCounts(),
        items=(ItemVerdict(item=ITEM, status=status, found=""),),
    )


def run(*steps: tuple[int, ItemStatus]) -> tuple[ClusterHistory, list[tuple[int, str, str]]]:
    """Return the history after verdicts, and the changes of the item."""
    history, found = ClusterHistory(), []
    for at, status in steps:
        history, changes = update_history(history, verdict(at, status))
        found += [(one.at, one.before, one.after) for one in changes if one.item]
    return history, found


def test_first_verdict_is_no_change() -> None:
    history, changes = run((10, NOT_MET))
    (item,) = history.items
    assert changes == []
    assert (item.known, item.since, item.seen) == (NOT_MET, 10, {NOT_MET: StatusSpan(10, 10)})


def test_first_and_last_time_of_each_status_are_kept() -> None:
    history, changes = run((10, MET), (20, MET), (30, NOT_MET), (40, NOT_MET), (50, MET))
    (item,) = history.items
    assert item.seen == {MET: StatusSpan(10, 50), NOT_MET: StatusSpan(30, 40)}
    assert (item.known, item.since) == (MET, 50)
    assert changes == [(30, MET, NOT_MET), (50, NOT_MET, MET)]


def test_unknown_status_does_not_end_a_known_one() -> None:
    history, changes = run((10, NOT_MET), (20, UNKNOWN), (30, NOT_MET))
    (item,) = history.items
    assert (item.status, item.known, item.since, changes) == (NOT_MET, NOT_MET, 10, [])
    assert item.seen[UNKNOWN] == StatusSpan(20, 20)
    _, changes = run((10, NOT_MET), (20, UNKNOWN), (30, MET))
    assert changes == [(30, NOT_MET, MET)]


def test_clock_that_is_set_back_moves_no_time_back() -> None:
    history, changes = run((100, MET), (50, NOT_MET), (60, NOT_MET))
    (item,) = history.items
    assert (history.at, item.since, item.seen[NOT_MET]) == (100, 100, StatusSpan(100, 100))
    assert changes == [(100, MET, NOT_MET)]


def test_item_that_is_no_longer_judged_is_dropped() -> None:
    history, _ = run((10, MET))
    later = msgspec.structs.replace(verdict(20, MET), items=())
    assert update_history(history, later)[0].items == ()


def test_change_of_visibility_is_a_change_of_the_cluster() -> None:
    history, _ = update_history(ClusterHistory(), verdict(10, MET))
    history, none = update_history(history, verdict(20, MET, ClusterVisibility.UNKNOWN))
    assert (history.visibility, history.since, none) == (ClusterVisibility.VISIBLE, 10, ())
    history, (change,) = update_history(history, verdict(30, MET, ClusterVisibility.PARTLY))
    assert (change.item, change.before, change.after) == ("", "visible", "partly_visible")
    assert (history.visibility, history.since) == (ClusterVisibility.PARTLY, 30)


def test_history_can_be_stored() -> None:
    history, _ = run((10, MET), (20, UNKNOWN))
    assert msgspec.json.decode(msgspec.json.encode(history), type=ClusterHistory) == history
