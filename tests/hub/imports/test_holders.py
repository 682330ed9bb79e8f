"""Holders from labels: reported on a change, for any split of a scrape and over a restart."""

from gpufleet.hub.imports.writers import METHOD, HolderTracker
from gpufleet.model.holdings import REPEAT_SECONDS, Holder, HolderKind, Holding, HoldingVerdict, Share
from gpufleet.model.machine import Machine
from gpufleet.model.time import NANOS

NODE = Machine(name="n")
GPU, SLICE = "gpu/GPU-1", "mig/instance/GPU-1/7"


def pod(name: str) -> Holder:
    return Holder(kind=HolderKind.POD, id=f"ml/{name}", name=name, namespace="ml")


A, B = pod("a"), pod("b")
NOW = 10**18
REPEAT = REPEAT_SECONDS * NANOS


def observe(
    holders: HolderTracker, at: int, *named: Holder, view: str = GPU, now: int = NOW
) -> list[tuple[str, int, int | None, str]]:
    """Return (name, since, until, share) of the reports after one part of a scrape."""
    changes, kept = holders.changes(NODE, {(view, at): frozenset(named)}, now)
    holders.keep(kept)
    return sorted((one.holder.name, one.since, one.until, one.share.value) for one in changes)


def test_holder_is_reported_once_and_ends_at_the_next_scrape() -> None:
    holders = HolderTracker()
    assert observe(holders, 10) == []
    assert observe(holders, 20, A) == [("a", 20, None, "exclusive")]
    assert observe(holders, 30, A) == []
    assert observe(holders, 40, B) == [("b", 40, None, "timeslice"), ("a", 20, None, "timeslice")][::-1]
    assert observe(holders, 50, B) == [("a", 20, 40, "exclusive"), ("b", 40, None, "exclusive")]
    assert observe(holders, 60) == []
    assert observe(holders, 70) == [("b", 40, 60, "exclusive")]
    assert observe(holders, 80) == []


def test_ended_holder_that_shared_stays_shared() -> None:
    holders = HolderTracker()
    observe(holders, 10, A)
    observe(holders, 20, A, B)
    observe(holders, 30, B)
    assert observe(holders, 40, B) == [("a", 10, 30, "timeslice"), ("b", 20, None, "exclusive")]


def test_parts_of_one_scrape_are_merged() -> None:
    holders = HolderTracker()
    observe(holders, 10, A)
    assert observe(holders, 20) == []  # a series of the scrape without a holder
    assert observe(holders, 20, A) == []
    assert observe(holders, 30, A) == []
    assert observe(holders, 15, B) == []  # late


def test_holders_that_were_not_made_durable_are_reported_again() -> None:
    holders = HolderTracker()
    first, _ = holders.changes(NODE, {(GPU, 10): frozenset({A})}, NOW)
    again, _ = holders.changes(NODE, {(GPU, 10): frozenset({A})}, NOW)
    assert first == again
    assert len(first) == 1


def test_several_holders_share_and_a_mig_slice_is_mig() -> None:
    holders = HolderTracker()
    assert observe(holders, 10, A, B) == [("a", 10, None, "timeslice"), ("b", 10, None, "timeslice")]
    assert observe(holders, 10, A, view=SLICE) == [("a", 10, None, "mig")]


def test_present_holders_are_repeated() -> None:
    holders = HolderTracker()
    observe(holders, 10, A, B)
    assert observe(holders, 20, A, B, now=NOW + REPEAT - 1) == []
    both = [("a", 10, None, "timeslice"), ("b", 10, None, "timeslice")]
    assert observe(holders, 30, A, B, now=NOW + REPEAT) == both
    assert observe(holders, 40, A, B, now=NOW + REPEAT + 1) == []
    assert observe(holders, 50, A, B, now=NOW + 2 * REPEAT) == both


def test_view_without_reports_begins_again() -> None:
    holders = HolderTracker()
    observe(holders, 10, A)
    observe(holders, 20, A, now=NOW + 5)
    holders.drop_before(NOW + 5)
    assert len(holders) == 1
    holders.drop_before(NOW + 6)
    assert len(holders) == 0
    assert observe(holders, 30, A) == [("a", 30, None, "exclusive")]


def test_holders_keep_their_start_over_a_restart() -> None:
    def stored(holder: Holder, since: int, method: str = METHOD) -> Holding:
        return Holding(
            view=GPU, holder=holder, since=since, methods=(method,), verdict=HoldingVerdict.OBSERVED_ONLY,
            share=Share.EXCLUSIVE,
        )  # fmt: skip

    holders = HolderTracker()
    holders.remember(NODE, [stored(A, 5), stored(pod("others"), 1, "kubelet")], NOW)
    assert observe(holders, 100, A) == [("a", 5, None, "exclusive")]  # the time of its last report is not known
    assert observe(holders, 105, A) == []
    assert observe(holders, 110) == []
    assert observe(holders, 120) == [("a", 5, 110, "exclusive")]
    again = HolderTracker()
    again.remember(NODE, [stored(A, 5)], NOW)
    assert observe(again, 100, B) == [("a", 5, None, "timeslice"), ("b", 100, None, "timeslice")]
    assert observe(again, 110, B) == [("a", 5, 100, "timeslice"), ("b", 100, None, "exclusive")]
