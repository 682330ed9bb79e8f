"""Onboarding plans, and progress by the hub's record of a cluster."""

import datetime as dt

import msgspec
import pytest

from gpufleet.fleet.contract.onboarding import OnboardingPlan, make_plan, tiers_of, with_progress
from gpufleet.fleet.contract.records import Requirement
from gpufleet.fleet.contract.starting_points import DEFAULT_POINTS, STARTING_POINTS, StartingPointName, StepCheck
from gpufleet.model.api.answer import Coverage
from gpufleet.model.cluster import Cluster, ClusterRecord, ClusterSpec
from gpufleet.model.contract import Tier
from gpufleet.model.liveness import ClusterFreshness, ExpectedGpus, Liveness, State
from gpufleet.wiring.contract import load_contract

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
CONTRACT = load_contract()


def plan(name: StartingPointName = StartingPointName.BARE_METAL, tier: Tier = Tier.HOSTS) -> OnboardingPlan:
    return make_plan(CONTRACT, name, tier, "rack-7", "https://hub:8470")


def record(
    *,
    spec: ClusterSpec | None = None,
    machines: dict[State, int] | None = None,
    reporting: int = 8,
    state: State = State.LIVE,
    closed_at: dt.datetime | None = None,
) -> ClusterRecord:
    counts = machines or {}
    freshness = ClusterFreshness(
        liveness=Liveness(state=state, unseen_seconds=1.0),
        last_seen_at=None if state is State.NEVER_SEEN else NOW,
        senders=counts,
        machines=counts,
        complete_up_to=NOW,
        not_waited_for=0,
        missing_batches=0,
        dropped_batches=0,
        queued_batches=0,
        clock_ahead_seconds=0.0,
    )
    expected = sum(spec.expected.values()) if spec is not None and spec.expected else None
    coverage = Coverage(
        cluster="rack-7",
        reporting=reporting,
        expected=expected,
        expected_by=None if expected is None else "registration",
        sources=ExpectedGpus(registration=expected),
        summary=f"{reporting} of {expected}",
    )
    return ClusterRecord(
        cluster=Cluster(id="rack-7", known_since=NOW, spec=spec, closed_at=closed_at),
        served=True,
        configured=False,
        freshness=freshness,
        coverage=coverage,
    )


SPEC = ClusterSpec(team="infra", expected={"H200": 8})


def done(found: OnboardingPlan) -> dict[StepCheck, bool | None]:
    return {one.check: one.done for one in found.steps if one.check is not None}


@pytest.mark.parametrize(("name", "tier"), STARTING_POINTS)
def test_plan_has_the_items_of_its_tier(name: StartingPointName, tier: Tier) -> None:
    found = plan(name, tier)
    assert [one.id for one in found.items] == [one.id for one in CONTRACT.items if tier in one.tiers]
    assert any(one.level is Requirement.MUST for one in found.items)
    assert 3 <= len(found.steps) <= 10
    assert {StepCheck.REGISTERED, StepCheck.LIVE, StepCheck.EXPECTED_GPUS} <= done(found).keys()
    assert (StepCheck.COLLECTOR in done(found)) == (tier in (Tier.COLLECTOR, Tier.EXPORTERS, Tier.AGENT))
    assert all("CLUSTER" not in one.command and "URL" not in one.command for one in found.steps)
    assert found.percent is None


def test_each_tier_has_a_default_that_reaches_it() -> None:
    assert all(tier in tiers_of(DEFAULT_POINTS[tier]) for tier in Tier)
    assert tiers_of(StartingPointName.KUBERNETES) == (Tier.COLLECTOR, Tier.AGENT)


def test_unknown_cluster_has_no_progress() -> None:
    found = with_progress(plan(), None)
    assert found.percent == 0
    assert set(done(found).values()) == {False}


def test_complete_cluster_has_full_progress() -> None:
    found = with_progress(plan(), record(spec=SPEC, machines={State.LIVE: 1, State.RETIRED: 2}))
    assert found.percent == 100
    assert set(done(found).values()) == {True}
    assert [one.done for one in found.steps if one.check is None] == [None]


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (record(machines={State.LIVE: 1}), {StepCheck.REGISTERED, StepCheck.EXPECTED_GPUS, StepCheck.ALL_GPUS}),
        (record(spec=SPEC, machines={State.LIVE: 1, State.LOST: 1}), {StepCheck.POOL, StepCheck.ALL_MACHINES}),
        (record(spec=SPEC, machines={State.LIVE: 2, State.LOST: 1}), {StepCheck.ALL_MACHINES}),
        (record(spec=SPEC, machines={State.LIVE: 1}, reporting=7), {StepCheck.ALL_GPUS}),
        (record(spec=SPEC, machines={State.LIVE: 1}, closed_at=NOW), {StepCheck.REGISTERED}),
        (record(spec=SPEC, machines={State.LIVE: 1}, state=State.STALE), {StepCheck.LIVE}),
        (record(spec=SPEC), {StepCheck.FIRST_MACHINE, StepCheck.POOL, StepCheck.ALL_MACHINES}),
    ],
)
def test_missing_condition_keeps_its_step_open(given: ClusterRecord, missing: set[StepCheck]) -> None:
    found = done(with_progress(plan(), given))
    assert {check for check, value in found.items() if not value} == missing


def test_unread_facts_are_unknown() -> None:
    unread = msgspec.structs.replace(record(spec=SPEC), freshness=None, coverage=None)
    found = done(with_progress(plan(), unread))
    assert found.pop(StepCheck.REGISTERED) is True
    assert set(found.values()) == {None}


def test_cluster_without_data_has_no_first_data() -> None:
    imported = plan(StartingPointName.PROMETHEUS, Tier.PULL)
    found = done(with_progress(imported, record(spec=SPEC, state=State.NEVER_SEEN)))
    assert found[StepCheck.FIRST_DATA] is False
