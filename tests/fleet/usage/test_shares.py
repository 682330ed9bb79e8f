"""Shares of a device, compared second by second with the intervals that answer for a pod."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.attribution.holding_intervals import held_intervals
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.fleet.usage.shares import HolderKey, HolderShare, by_place, holder_key, share_intervals, workload_shares
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.holdings import CertainPeriod, Holder, HolderKind, Holding, HoldingVerdict, Share
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import NANOS, to_datetime

SECONDS = 40
NOW = SECONDS * NANOS
PLACE = ("m", "gpu/GPU-1")
VM = Holder(kind=HolderKind.VM, id="vm")


def pod(id_: str) -> Holder:
    return Holder(kind=HolderKind.POD, id=id_)


def key(id_: str) -> HolderKey:
    return HolderKind.POD, id_


def stored(
    holder: Holder,
    since: int,
    until: int | None = None,
    *,
    share: Share = Share.EXCLUSIVE,
    replicas: int = 0,
    verdict: HoldingVerdict = HoldingVerdict.AGREED,
    reported: int = SECONDS,
    parent: Holder | None = None,
    container: str = "",
    methods: tuple[str, ...] = ("kubelet",),
    certain: CertainPeriod | None = None,
) -> StoredHolding:
    holding = Holding(
        view=PLACE[1],
        holder=holder,
        parent=parent,
        container=container,
        share=share,
        replicas=replicas,
        since=since * NANOS,
        until=None if until is None else until * NANOS,
        methods=methods,
        verdict=verdict,
        certain=certain,
    )
    return StoredHolding(cluster="c", machine=PLACE[0], holding=holding, reported_at=reported * NANOS)


def allocation(pod_uid: str, start: int = 0, end: int | None = None) -> Allocation:
    spec = AllocationSpec(
        kind=AllocationKind.KUBERNETES_POD,
        target=Target(cluster="c", pod_uid=pod_uid),
        valid_from=to_datetime(start * NANOS),
        valid_to=None if end is None else to_datetime(end * NANOS),
    )
    return Allocation(id=f"of-{pod_uid}", generation=1, spec=spec, created_at=to_datetime(0))


def shares(held: Sequence[StoredHolding]) -> list[tuple[int, int, dict[str, tuple[Any, int]]]]:
    return [
        (
            one.start // NANOS,
            one.end // NANOS,
            {id_: (share.fraction, share.replicas) for (_, id_), share in one.shares.items()},
        )
        for one in share_intervals(held, NOW, 0, NOW)
    ]


def test_replicas_divide_a_device_among_its_present_holders() -> None:
    held = [
        stored(pod("a"), 0, 20, share=Share.TIMESLICE, replicas=1),
        stored(pod("b"), 10, 30, share=Share.TIMESLICE, replicas=3),
    ]
    assert shares(held) == [
        (0, 10, {"a": (1.0, 1)}),
        (10, 20, {"a": (0.25, 1), "b": (0.75, 3)}),
        (20, 30, {"b": (1.0, 3)}),
    ]


def test_claim_is_divided_equally_and_containers_add_up() -> None:
    claims = [stored(pod(id_), 0, 10, share=Share.DRA) for id_ in "ab"]
    assert shares(claims) == [(0, 10, {"a": (0.5, 0), "b": (0.5, 0)})]
    sliced = {"share": Share.TIMESLICE, "replicas": 1}
    containers = [
        stored(pod("a"), 0, 10, container="x", **sliced),  # type: ignore[arg-type]
        stored(pod("a"), 0, 10, container="y", **sliced),  # type: ignore[arg-type]
        stored(pod("b"), 0, 10, **sliced),  # type: ignore[arg-type]
    ]
    assert shares(containers) == [(0, 10, {"a": (pytest.approx(2 / 3), 2), "b": (pytest.approx(1 / 3), 1)})]


def test_launcher_pod_and_its_virtual_machine_are_one_holder() -> None:
    held = [stored(pod("launcher"), 0, 10, parent=VM), stored(VM, 0, 12)]
    assert shares(held) == [(0, 10, {"launcher": (1.0, 0)}), (10, 12, {"vm": (1.0, 0)})]


def test_unconfirmed_process_does_not_share_the_device_of_a_declared_pod() -> None:
    """The verdict of both was `conflict` before their sources failed."""
    unknown = HoldingVerdict.UNKNOWN
    held = [
        stored(pod("a"), 0, 10, verdict=unknown),
        stored(pod("b"), 0, 10, verdict=unknown, methods=("process",)),
    ]
    (interval,) = share_intervals(held, NOW, 0, NOW)
    assert (dict(interval.shares), set(interval.disputed)) == ({}, {key("a"), key("b")})


def test_two_exclusive_holders_are_disputed() -> None:
    (one,) = share_intervals([stored(pod("a"), 0, 10), stored(pod("b"), 0, 10)], NOW, 0, NOW)
    assert not one.shares
    assert one.disputed == {key("a"), key("b")}
    assert one.absent is Reason.AMBIGUOUS_TARGET


@pytest.mark.parametrize(
    ("verdict", "share", "absent"),
    [
        (HoldingVerdict.UNKNOWN, HolderShare(1.0, 0), None),
        (HoldingVerdict.CONFLICT, None, Reason.AMBIGUOUS_TARGET),
        (HoldingVerdict.NONE, None, Reason.NOT_ATTRIBUTED),
    ],
)
def test_uncertain_holding_counts_only_if_it_was_declared_last(
    verdict: HoldingVerdict, share: HolderShare | None, absent: Reason | None
) -> None:
    held = [stored(pod("a"), 0, 10, verdict=verdict)]
    (one,) = share_intervals(held, NOW, 0, NOW)
    assert (one.shares.get(key("a")), one.is_confirmed, one.absent) == (share, False, absent)
    (own,) = workload_shares([allocation("a")], held, NOW, 0, NOW)["of-a"]
    assert (own.share, own.is_confirmed, own.absent) == (share, False, absent)
    after = share_intervals([*held, stored(pod("b"), 5, 10)], NOW, 0, NOW)[-1]
    assert (dict(after.shares), after.is_confirmed) == ({key("b"): HolderShare(1.0, 0)}, True)


def test_unknown_holding_is_confirmed_in_its_certain_part() -> None:
    certain = CertainPeriod(verdict=HoldingVerdict.AGREED, until=10 * NANOS)
    held = [stored(pod("a"), 0, verdict=HoldingVerdict.UNKNOWN, certain=certain)]
    assert [(one.start, one.end, one.is_confirmed) for one in share_intervals(held, NOW, 0, NOW)] == [
        (0, 10 * NANOS, True),
        (10 * NANOS, NOW, False),
    ]


def test_lost_end_of_a_holding_is_the_start_of_the_next_one() -> None:
    held = [stored(pod("a"), 0, reported=5), stored(pod("b"), 10, 20)]
    assert shares(held) == [(0, 10, {"a": (1.0, 0)}), (10, 20, {"b": (1.0, 0)})]


def test_allocation_has_shares_within_its_validity() -> None:
    (own,) = workload_shares([allocation("a", 5, 15)], [stored(pod("a"), 0, 30)], NOW, 0, NOW)["of-a"]
    assert (own.start // NANOS, own.end // NANOS, own.share) == (5, 15, HolderShare(1.0, 0))


def test_disputed_tasks_of_one_array_belong_to_its_allocation() -> None:
    target = Target(cluster="c", job_id="7")
    spec = AllocationSpec(kind=AllocationKind.SLURM_JOB, target=target, valid_from=to_datetime(0))
    array = Allocation(id="array", generation=1, spec=spec, created_at=to_datetime(0))
    tasks = [Holder(kind=HolderKind.JOB, id=f"{8 + n}", array_job="7", array_task=f"{n}") for n in (1, 2)]
    found = workload_shares([array], [stored(task, 0, 10) for task in tasks], NOW, 0, NOW)["array"]
    assert [one.share for one in found] == [HolderShare(0.5, 0), HolderShare(0.5, 0)]


CERTAIN = st.builds(
    CertainPeriod,
    verdict=st.sampled_from([HoldingVerdict.AGREED, HoldingVerdict.OBSERVED_ONLY, HoldingVerdict.CONFLICT]),
    until=st.integers(0, SECONDS).map(lambda second: second * NANOS),
)


@st.composite
def random_holdings(draw: st.DrawFn) -> StoredHolding:
    name = draw(st.sampled_from("abc"))
    since = draw(st.integers(0, SECONDS - 1))
    until = draw(st.one_of(st.none(), st.integers(since, SECONDS)))
    stale = draw(st.booleans()) and until is None
    return stored(
        draw(st.sampled_from([pod(name), VM])),
        since,
        until,
        share=draw(st.sampled_from([Share.EXCLUSIVE, Share.TIMESLICE, Share.MPS, Share.DRA])),
        replicas=draw(st.integers(0, 3)),
        verdict=draw(st.sampled_from([HoldingVerdict.AGREED, HoldingVerdict.UNKNOWN, HoldingVerdict.CONFLICT])),
        reported=since - HOLDING_TTL_NS // NANOS + draw(st.integers(0, 20)) if stale else SECONDS,
        container=draw(st.sampled_from("xyz")),
        certain=draw(st.none() | CERTAIN),
    )


@given(st.lists(random_holdings(), max_size=8))
def test_shares_are_those_of_the_answers(held: list[StoredHolding]) -> None:
    """A holder that shares a device with two others that contradict each other has no known share."""
    found = share_intervals(held, NOW, 0, NOW)
    seconds: list[dict[str, float]] = [{} for _ in range(SECONDS)]
    disputed: set[tuple[str, int]] = set()
    for one in found:
        assert one.start < one.end
        assert sum(share.fraction for share in one.shares.values()) == pytest.approx(1.0 if one.shares else 0.0)
        assert bool(one.shares) is not (one.absent is not None)
        for second in range(one.start // NANOS, one.end // NANOS):
            assert not seconds[second]
            present = [
                other.holding
                for other in held
                if other.holding.since <= second * NANOS and (other.holding.until or NOW) > second * NANOS
            ]
            assert {*one.shares, *one.disputed} <= {holder_key(other.holder) for other in present}
            disputed.update((id_, second) for _, id_ in one.disputed)
            if one.is_confirmed:
                seconds[second] = {id_: share.fraction for (kind, id_), share in one.shares.items() if kind == "pod"}
    for name in "abc":
        answered = held_intervals(allocation(name), held, NOW, 0, NOW)
        expected = {second for one in answered for second in range(one.start // NANOS, one.end // NANOS)}
        expected -= {second for id_, second in disputed if id_ == name}
        assert {second for second, own in enumerate(seconds) if name in own} == expected


@given(st.lists(random_holdings(), max_size=8))
def test_allocations_never_have_more_than_the_device(held: list[StoredHolding]) -> None:
    found = workload_shares([allocation(name) for name in "abc"], held, NOW, 0, NOW)
    for second in range(SECONDS):
        fractions = [
            one.share.fraction
            for own in found.values()
            for one in own
            if one.share is not None and one.start <= second * NANOS < one.end
        ]
        assert sum(fractions) <= 1 + 1e-9


def test_job_of_an_import_is_that_of_the_agent_on_the_same_device() -> None:
    """An import reports no SLURM cluster. The same id in two clusters is two jobs."""
    named, other = (Holder(kind=HolderKind.JOB, id="7", slurm_cluster=name) for name in ("alpha", "beta"))
    imported = Holder(kind=HolderKind.JOB, id="7")
    (own,) = by_place([stored(named, 0, 10), stored(imported, 0, 10)]).values()
    assert {holder_key(one.holding.holder) for one in own} == {(HolderKind.JOB, "alpha/7")}
    (own,) = by_place([stored(one, 0, 10) for one in (named, other, imported)]).values()
    assert {holder_key(one.holding.holder)[1] for one in own} == {"alpha/7", "beta/7", "7"}
