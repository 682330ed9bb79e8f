"""Onboarding plan of a cluster, and its progress by a hub's record of the cluster. Pure."""

from collections.abc import Callable, Mapping

import msgspec

from gpufleet.fleet.contract.records import (
    AdoptionContract,
    CheckPlace,
    ItemPhase,
    ItemRemedy,
    Requirement,
)
from gpufleet.fleet.contract.starting_points import (
    STARTING_POINTS,
    Connection,
    StartingPointName,
    StepCheck,
)
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.contract import ContractSummary, Tier
from gpufleet.model.liveness import State


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step of a plan.

    Attributes:
        title: action of the step.
        command: main command.
        check: condition at the hub, or None.
        done: whether the condition is met; None if it was not checked, or the hub does not know it.
        found: what the hub has; empty if nothing was checked.
    """

    title: str
    command: str
    check: StepCheck | None
    done: bool | None = None
    found: str = ""


class PlannedItem(msgspec.Struct, frozen=True, kw_only=True):
    """Item of the contract in a plan; fields as in `ContractItem`."""

    id: str
    title: str
    level: Requirement
    phase: ItemPhase
    on: CheckPlace
    remedy: ItemRemedy


class OnboardingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a cluster.

    Attributes:
        cluster: id of the cluster, or the placeholder `CLUSTER`.
        starting_point: what the cluster has.
        tier: tier that the plan reaches.
        tier_name: name of the tier.
        shows: what the hub knows at this tier.
        contract: valid versions of the contract.
        title, page, installs, permissions, labels, egress, first_value: as in `StartingPoint`.
        steps: steps in order.
        items: items of the tier, in the order of the contract.
        percent: done steps of the checkable ones, rounded down; None if no hub was queried.
        verdict: newest verdict of the hub about the cluster by the contract; None if there is none.
    """

    cluster: str
    starting_point: StartingPointName
    tier: Tier
    tier_name: str
    shows: str
    contract: tuple[str, ...]
    title: str
    page: str
    installs: str
    permissions: str
    labels: str
    egress: tuple[Connection, ...]
    first_value: str
    steps: tuple[PlannedStep, ...]
    items: tuple[PlannedItem, ...]
    percent: int | None = None
    verdict: ContractSummary | None = None


def tiers_of(name: StartingPointName) -> tuple[Tier, ...]:
    """Return the tiers that a starting point can reach, lowest first."""
    return tuple(sorted(tier for one, tier in STARTING_POINTS if one is name))


def make_plan(
    contract: AdoptionContract, name: StartingPointName, tier: Tier, cluster: str = "CLUSTER", url: str = "URL"
) -> OnboardingPlan:
    """Return the plan of a cluster; `cluster` and `url` replace the placeholders in commands.

    Raises:
        KeyError: if the starting point does not reach the tier.
    """
    point = STARTING_POINTS[name, tier]
    described = next(one for one in contract.tiers if one.tier is tier)
    steps = [
        PlannedStep(
            title=one.title, command=one.command.replace("CLUSTER", cluster).replace("URL", url), check=one.check
        )
        for one in point.steps
    ]
    items = [
        PlannedItem(
            id=one.id, title=one.title, level=one.level, phase=contract.phase(one), on=one.on, remedy=one.remedy
        )
        for one in contract.items
        if tier in one.tiers
    ]
    return OnboardingPlan(
        cluster=cluster,
        starting_point=name,
        tier=tier,
        tier_name=described.name,
        shows=described.shows,
        contract=contract.versions,
        title=point.title,
        page=point.page,
        installs=point.installs,
        permissions=point.permissions,
        labels=point.labels,
        egress=point.egress,
        first_value=point.first_value,
        steps=tuple(steps),
        items=tuple(items),
    )


def with_progress(plan: OnboardingPlan, record: ClusterRecord | None) -> OnboardingPlan:
    """Return the plan with the result of each step that a hub shows.

    Args:
        plan: the plan.
        record: the hub's record of the cluster; None if the hub does not know the cluster.
    """
    steps = [one if one.check is None else _checked(one, one.check, record) for one in plan.steps]
    checkable = [one for one in steps if one.check is not None]
    done = sum(one.done is True for one in checkable)
    verdict = None if record is None else record.contract
    return msgspec.structs.replace(plan, steps=tuple(steps), percent=100 * done // len(checkable), verdict=verdict)


def _checked(step: PlannedStep, check: StepCheck, record: ClusterRecord | None) -> PlannedStep:
    done, found = (False, "the hub does not know the cluster") if record is None else _CHECKS[check](record)
    return msgspec.structs.replace(step, done=done, found=found)


Outcome = tuple[bool | None, str]
"""Whether a condition is met, or None if it is unknown; and what was found."""


def _registered(record: ClusterRecord) -> Outcome:
    if record.cluster.closed_at is not None:
        return False, "the cluster is closed"
    spec = record.cluster.spec
    return (False, "only in the hub's configuration") if spec is None else (True, spec.team or "no team")


def _expected_gpus(record: ClusterRecord) -> Outcome:
    if record.coverage is None:
        return None, "unknown"
    if record.coverage.expected is None:
        return False, "no source has a number"
    return True, f"{record.coverage.expected} by {record.coverage.expected_by}"


def _first_data(record: ClusterRecord) -> Outcome:
    if record.freshness is None:
        return None, "unknown"
    seen = record.freshness.last_seen_at
    return (False, "nothing was received") if seen is None else (True, f"last seen {seen:%Y-%m-%d %H:%M:%SZ}")


def _live(record: ClusterRecord) -> Outcome:
    if record.freshness is None:
        return None, "unknown"
    state = record.freshness.liveness.state
    return state is State.LIVE, state.value


def _collector(record: ClusterRecord) -> Outcome:
    collectors = () if record.collection is None else record.collection.collectors
    current = [one.sender for one in collectors if one.current]
    return (True, ", ".join(current)) if current else (False, "no collector reports")


def _first_machine(record: ClusterRecord) -> Outcome:
    counts = _machines(record)
    return (None, "unknown") if counts is None else (counts.get(State.LIVE, 0) > 0, _counted(counts))


def _pool(record: ClusterRecord) -> Outcome:
    counts = _machines(record)
    if counts is None:
        return None, "unknown"
    return counts.get(State.LIVE, 0) > 1 or counts == {State.LIVE: 1}, _counted(counts)


def _all_machines(record: ClusterRecord) -> Outcome:
    counts = _machines(record)
    return (None, "unknown") if counts is None else (counts.keys() == {State.LIVE}, _counted(counts))


def _all_gpus(record: ClusterRecord) -> Outcome:
    coverage = record.coverage
    if coverage is None or coverage.expected is None:
        return None, "unknown"
    return 0 < coverage.expected <= coverage.reporting, coverage.summary


def _machines(record: ClusterRecord) -> dict[State, int] | None:
    """Return the number of machines that are not retired in each state; None if it is unknown."""
    if record.freshness is None:
        return None
    return {state: count for state, count in record.freshness.machines.items() if count and state is not State.RETIRED}


def _counted(counts: Mapping[State, int]) -> str:
    return ", ".join(f"{count} {state.value}" for state, count in counts.items()) or "no machines"


_CHECKS: Mapping[StepCheck, Callable[[ClusterRecord], Outcome]] = {
    StepCheck.REGISTERED: _registered,
    StepCheck.EXPECTED_GPUS: _expected_gpus,
    StepCheck.FIRST_DATA: _first_data,
    StepCheck.LIVE: _live,
    StepCheck.COLLECTOR: _collector,
    StepCheck.FIRST_MACHINE: _first_machine,
    StepCheck.POOL: _pool,
    StepCheck.ALL_MACHINES: _all_machines,
    StepCheck.ALL_GPUS: _all_gpus,
}
"""Check of each condition."""
