"""Devices of pods and jobs over time: random holdings, hand-overs, shares and verdicts against a plain definition."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.attribution.bindings import BoundInterval
from gpufleet.fleet.attribution.evidence import SHARED
from gpufleet.fleet.attribution.holding_intervals import SPLIT, bound_held_intervals, held_devices, held_intervals
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS, is_certain, known_until
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.holdings import CertainPeriod, Holder, HolderKind, Holding, HoldingVerdict, Share
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Scope
from tests.support.profiles import examples

SECONDS = 100
NOW = SECONDS * NANOS
VIEWS = ("gpu/GPU-1", "gpu/GPU-2")
VM = Holder(kind=HolderKind.VM, id="vm")


def pod(id_: str) -> Holder:
    return Holder(kind=HolderKind.POD, id=id_)


def allocation(start: int = 0, end: int | None = None, pod_uid: str = "a") -> Allocation:
    spec = AllocationSpec(
        kind=AllocationKind.KUBERNETES_POD,
        target=Target(cluster="c", pod_uid=pod_uid),
        valid_from=to_datetime(start * NANOS),
        valid_to=None if end is None else to_datetime(end * NANOS),
    )
    return Allocation(id="a", generation=1, spec=spec, created_at=to_datetime(0))


def stored(
    since: int,
    until: int | None = None,
    *,
    holder: Holder | None = None,
    view: str = VIEWS[0],
    share: Share = Share.EXCLUSIVE,
    verdict: HoldingVerdict = HoldingVerdict.AGREED,
    reported: int = SECONDS,
    parent: Holder | None = None,
    container: str = "",
    certain: CertainPeriod | None = None,
) -> StoredHolding:
    holding = Holding(
        view=view,
        holder=holder or pod("a"),
        parent=parent,
        container=container,
        share=share,
        since=since * NANOS,
        until=None if until is None else until * NANOS,
        methods=("kubelet",),
        verdict=verdict,
        certain=certain,
    )
    return StoredHolding(cluster="c", machine="m", holding=holding, reported_at=reported * NANOS)


def spans(holdings: Sequence[StoredHolding], start: int = 0, end: int | None = None) -> list[tuple[int, int, Scope]]:
    found = held_intervals(allocation(start, end), holdings, NOW, 0, NOW)
    return [(one.start // NANOS, one.end // NANOS, one.scope) for one in found]


OWN, SHARED_DEVICE = Scope.OWN, Scope.SHARED_DEVICE


def test_containers_of_a_pod_have_the_device_together() -> None:
    both = [stored(5, 20, container="x"), stored(10, 30, container="y")]
    assert spans(both) == [(5, 30, OWN)]


def test_validity_bounds_the_intervals() -> None:
    assert spans([stored(5)], start=10, end=40) == [(10, 40, OWN)]


def test_unknown_holding_keeps_its_certain_time() -> None:
    certain = CertainPeriod(verdict=HoldingVerdict.AGREED, until=30 * NANOS)
    assert spans([stored(5, verdict=HoldingVerdict.UNKNOWN, certain=certain)]) == [(5, 30, OWN)]
    assert spans([stored(5, 20, verdict=HoldingVerdict.UNKNOWN, certain=certain)]) == [(5, 20, OWN)]
    assert spans([stored(5, verdict=HoldingVerdict.CONFLICT, certain=certain)]) == []


def test_contradicting_holders_have_no_time_together() -> None:
    assert spans([stored(5), stored(20, 30, holder=pod("b"))]) == [(5, 20, OWN), (30, 100, OWN)]


def test_lost_end_is_the_start_of_the_next_holder() -> None:
    assert spans([stored(5, reported=20), stored(40, holder=pod("b"))]) == [(5, 40, OWN)]
    assert spans([stored(40), stored(5, reported=20, holder=pod("b"))]) == [(40, 100, OWN)]


def test_other_holder_makes_the_device_shared_while_it_lasts() -> None:
    dra = {"share": Share.DRA}
    assert spans([stored(5, share=Share.DRA), stored(20, 30, holder=pod("b"), **dra)]) == [  # type: ignore[arg-type]
        (5, 20, OWN),
        (20, 30, SHARED_DEVICE),
        (30, 100, OWN),
    ]


def test_virtual_machine_and_its_launcher_pod_are_one_holder() -> None:
    assert spans([stored(5, parent=VM), stored(5, holder=VM)]) == [(5, 100, OWN)]


def test_holding_of_another_cluster_or_of_no_device_is_ignored() -> None:
    assert spans([stored(5, view="disk/sda")]) == []
    foreign = stored(5)
    assert held_intervals(allocation(), [StoredHolding(
        cluster="d", machine="m", holding=foreign.holding, reported_at=foreign.reported_at
    )], NOW, 0, NOW) == ()  # fmt: skip


def test_devices_with_equal_time_are_one_interval() -> None:
    found = held_intervals(allocation(), [stored(5, view=view) for view in VIEWS], NOW, 0, NOW)
    assert bound_held_intervals(found) == (
        BoundInterval("m", frozenset(VIEWS), 5 * NANOS, NOW, scope=OWN, of_host=False, since=5 * NANOS),
    )


def test_holders_of_a_machine_are_those_with_its_devices_in_its_time() -> None:
    whole = BoundInterval("m", None, 10 * NANOS, 20 * NANOS)
    held = [stored(0, 15), stored(20, holder=pod("b")), stored(12, holder=pod("c"), verdict=HoldingVerdict.CONFLICT)]
    assert [(one.holder.id, one.interval.start // NANOS, one.interval.end // NANOS) for one in held_devices(
        held, [whole], NOW
    )] == [("a", 10, 15), ("c", 12, 20)]  # fmt: skip


def test_holders_of_a_device_have_their_virtual_machine() -> None:
    (found,) = held_devices([stored(5, parent=VM)], [BoundInterval("m", frozenset(VIEWS), 0, NOW)], NOW)
    assert (found.holder, found.parent) == (pod("a"), VM)


MIGS = ("mig/MIG-1", "mig/MIG-2")
PARENTS = {("m", view): VIEWS[0] for view in MIGS}


def of_view(holdings: Sequence[StoredHolding], pod_uid: str = "a") -> list[tuple[str, int, int, Scope]]:
    found = held_intervals(allocation(pod_uid=pod_uid), holdings, NOW, 0, NOW, PARENTS)
    return [(one.view, one.start // NANOS, one.end // NANOS, one.scope) for one in found]


def test_gpu_and_its_mig_device_contradict() -> None:
    every = [stored(5), stored(20, 30, view=MIGS[0], share=Share.MIG, holder=pod("b"))]
    assert of_view(every) == [(VIEWS[0], 5, 20, OWN), (VIEWS[0], 30, 100, OWN)]
    assert of_view(every, "b") == []


def test_lost_end_of_a_gpu_is_the_start_of_its_mig_device() -> None:
    every = [stored(5, reported=20), stored(40, view=MIGS[0], share=Share.MIG, holder=pod("b"))]
    assert of_view(every) == [(VIEWS[0], 5, 40, OWN)]
    assert of_view(every, "b") == [(MIGS[0], 40, 100, OWN)]


def test_mig_devices_of_a_gpu_are_independent() -> None:
    every = [stored(5, view=view, share=Share.MIG, holder=pod(id_)) for view, id_ in zip(MIGS, "ab", strict=True)]
    assert of_view(every) == [(MIGS[0], 5, 100, OWN)]


def test_observed_process_on_the_gpu_does_not_share_its_mig_device() -> None:
    process = stored(5, holder=pod("b"), verdict=HoldingVerdict.OBSERVED_ONLY)
    assert of_view([stored(5, view=MIGS[0], share=Share.MIG), process]) == [(MIGS[0], 5, 100, OWN)]


@pytest.mark.parametrize("age", [0, HOLDING_TTL_NS + 1])
def test_holding_that_is_not_repeated_ends_at_its_last_report(age: int) -> None:
    (found,) = held_intervals(allocation(), [stored(5, reported=50)], 50 * NANOS + age)
    assert (found.end == 50 * NANOS) is (age > 0)


holdings = st.lists(
    st.builds(
        stored,
        since=st.integers(0, SECONDS - 1),
        until=st.none() | st.integers(0, SECONDS + 5),
        holder=st.sampled_from([pod("a"), pod("b"), pod("c"), VM]),
        view=st.sampled_from(VIEWS),
        share=st.sampled_from(Share),
        verdict=st.sampled_from(HoldingVerdict),
        reported=st.integers(0, SECONDS),
        parent=st.sampled_from([None, None, VM]),
        container=st.sampled_from(["", "x"]),
    ),
    max_size=8,
)


def is_exclusive(one: StoredHolding) -> bool:
    return one.holding.share not in SHARED and one.holding.verdict is not HoldingVerdict.OBSERVED_ONLY


def related(one: StoredHolding, own: Sequence[StoredHolding]) -> bool:
    parents = [mine.holding.parent for mine in own if mine.holding.parent is not None]
    return one.holding.holder in parents or one.holding.parent in [mine.holding.holder for mine in own]


def lasts(one: StoredHolding, rivals: Sequence[StoredHolding], at: int) -> bool:
    """Return whether a holding lasts at an instant, its lost end considered."""
    until = known_until(one, NOW)
    ends = [] if until is None else [until]
    if one.holding.until is None and is_exclusive(one):
        newest = max(one.holding.since, one.reported_at)
        ends += [rival.holding.since for rival in rivals if is_exclusive(rival) and rival.holding.since > newest]
    return one.holding.since <= at and all(at < end for end in ends)


def expected_scope(every: Sequence[StoredHolding], view: str, at: int) -> Scope | None:
    certain = [one for one in every if is_certain(one.holding) and one.holding.view == view]
    own = [one for one in certain if one.holding.holder.id == "a"]
    others = [one for one in certain if one.holding.holder.id != "a" and not related(one, own)]
    mine = [one for one in own if lasts(one, others, at)]
    theirs = [one for one in others if lasts(one, own, at)]
    if not mine or (any(map(is_exclusive, mine)) and any(map(is_exclusive, theirs))):
        return None
    return SHARED_DEVICE if theirs or any(one.holding.share in SPLIT for one in mine) else OWN


@settings(max_examples=examples(150, 2000), deadline=None)
@given(holdings, st.integers(0, SECONDS // 2), st.integers(SECONDS // 2, SECONDS))
def test_every_instant_is_as_defined(every: list[StoredHolding], first: int, last: int) -> None:
    found = held_intervals(allocation(first, last), every, NOW)
    for view in VIEWS:
        of_view = [one for one in found if one.view == view]
        assert all(one.start < one.end for one in of_view)
        assert all(one.end <= other.start for one, other in pairwise(of_view))
        for second in range(SECONDS):
            at = second * NANOS
            scopes = [one.scope for one in of_view if one.start <= at < one.end]
            wanted = expected_scope(every, view, at) if first <= second < last else None
            assert scopes == ([] if wanted is None else [wanted])


@settings(max_examples=examples(150, 2000), deadline=None)
@given(holdings)
def test_tenants_never_have_an_exclusive_device_at_once(every: list[StoredHolding]) -> None:
    found = [held_intervals(allocation(pod_uid=name), every, NOW, 0, NOW) for name in "ab"]
    for one in found[0]:
        for other in found[1]:
            overlap = one.view == other.view and max(one.start, other.start) < min(one.end, other.end)
            assert not overlap or SHARED_DEVICE in (one.scope, other.scope)
