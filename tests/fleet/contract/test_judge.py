"""Verdict about a cluster: tier, percentage, what is not visible, waivers, and versions of the contract."""

import datetime as dt
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.contract.check import ItemStatus
from gpufleet.fleet.contract.facts import (
    ClusterFacts,
    GpuSource,
    MachineFacts,
    PlaceFacts,
    PlaceResult,
    group_machines,
)
from gpufleet.fleet.contract.judge import judge_cluster, judge_place
from gpufleet.fleet.contract.records import (
    AdoptionContract,
    CheckPlace,
    ContractItem,
    Requirement,
)
from gpufleet.fleet.contract.verdict import (
    MAX_EXAMPLES,
    ClusterVerdict,
)
from gpufleet.model.api.kubernetes import CollectionState
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.contract import ClusterVisibility, ContractWaiver, Tier
from gpufleet.model.liveness import State
from gpufleet.wiring.contract import load_contract
from tests.support.contract_facts import AT, MACHINE, bare, cluster, collection, coverage, liveness, machine

CONTRACT = load_contract()
MUSTS = [one.id for one in CONTRACT.items if one.level is Requirement.MUST and one.on is CheckPlace.HUB]


def two(first: MachineFacts = MACHINE, second: MachineFacts = MACHINE) -> ClusterFacts:
    return cluster(*group_machines([("node-1", first), ("node-2", second)]))


def waiver(item: str, days: int = 1) -> ContractWaiver:
    return ContractWaiver(item=item, until=AT + dt.timedelta(days=days), reason="ticket 4711")


def changed(item: str, **changes: object) -> AdoptionContract:
    items = [msgspec.structs.replace(one, **changes) if one.id == item else one for one in CONTRACT.items]
    return msgspec.structs.replace(CONTRACT, versions=("1.0", "1.1"), items=tuple(items))


@pytest.mark.parametrize(("facts", "tier"), [(cluster(), Tier.AGENT), (bare(), Tier.HOSTS)])
def test_complete_cluster_is_visible_in_its_tier(facts: ClusterFacts, tier: Tier) -> None:
    verdict = judge_cluster(CONTRACT, facts)
    assert verdict.visibility is ClusterVisibility.VISIBLE
    assert (verdict.judged_tier, verdict.reached_tier, verdict.is_declared) == (tier, tier, False)
    assert verdict.must.percent == 100.0
    assert (verdict.not_visible, verdict.gpus_not_visible, verdict.machines_not_visible) == ((), 0, 0)


def test_items_of_another_tier_are_not_judged() -> None:
    judged = {one.item for one in judge_cluster(CONTRACT, bare()).items}
    assert judged == {one.id for one in CONTRACT.items if Tier.HOSTS in one.tiers and one.on is CheckPlace.HUB}
    assert "cluster.collector" not in judged


def test_machine_that_fails_an_item_is_not_visible_with_its_gpus() -> None:
    verdict = judge_cluster(CONTRACT, two(second=machine(state=State.LOST, reporting_gpus=0, value_age_seconds=7200)))
    assert verdict.visibility is ClusterVisibility.PARTLY
    assert set(verdict.not_visible) == {"exposition.gpus_report", "freshness.machines", "freshness.age"}
    assert (verdict.gpus_not_visible, verdict.machines_not_visible) == (8, 1)  # each GPU counts once
    lost = next(one for one in verdict.items if one.item == "freshness.machines")
    assert lost.machines == {ItemStatus.MET: 1, ItemStatus.NOT_MET: 1}
    assert [(one.machine, one.found) for one in lost.examples] == [("node-2", "lost")]


def test_unknown_facts_of_a_lost_machine_are_no_second_fault() -> None:
    lost = machine(state=State.LOST, clock_ahead_seconds=None)
    clock = next(one for one in judge_cluster(CONTRACT, two(second=lost)).items if one.item == "freshness.clock")
    assert (clock.status, clock.machines) == (ItemStatus.MET, {ItemStatus.MET: 1, ItemStatus.UNKNOWN: 1})
    alone = next(one for one in judge_cluster(CONTRACT, two(lost, lost)).items if one.item == "freshness.clock")
    assert alone.status is ItemStatus.UNKNOWN


@pytest.mark.parametrize(
    "item", ["node.holders", "metadata.gpu_uuid", "exposition.usage", "exposition.condition", "exposition.values"]
)
def test_item_about_reporting_gpus_is_unknown_without_any(item: str) -> None:
    quiet = machine(reporting_gpus=0, identified_gpus=0, usage_gpus=0, condition_gpus=0)
    alone = next(one for one in judge_cluster(CONTRACT, two(quiet, quiet)).items if one.item == item)
    assert alone.status is ItemStatus.UNKNOWN
    verdict = judge_cluster(CONTRACT, two(second=quiet))
    found = next(one for one in verdict.items if one.item == item)
    assert (found.status, found.machines) == (ItemStatus.MET, {ItemStatus.MET: 1, ItemStatus.UNKNOWN: 1})
    assert verdict.not_visible == ("exposition.gpus_report",)


def test_only_the_gpus_that_an_item_concerns_are_not_visible() -> None:
    verdict = judge_cluster(CONTRACT, two(machine(usage_gpus=6), machine(identified_gpus=5)))
    assert verdict.not_visible == ("metadata.gpu_uuid", "exposition.usage")
    assert (verdict.gpus_not_visible, verdict.machines_not_visible) == (5, 2)


def test_expected_gpus_without_a_machine_are_not_visible() -> None:
    verdict = judge_cluster(CONTRACT, cluster(coverage=coverage(24, pci=16)))
    assert verdict.visibility is ClusterVisibility.PARTLY
    assert verdict.not_visible == ("exposition.gpus_located",)
    assert (verdict.gpus_not_visible, verdict.machines_not_visible) == (8, 0)


NO_CONTACT = ClusterSpec(environment="test", team="a", expected={"H200": 16})
NO_COLLECTOR = collection(msgspec.structs.replace(collection().collectors[0], current=False))


def test_cluster_without_reports_is_not_visible_with_all_gpus() -> None:
    quiet = machine(state=State.LOST, reporting_gpus=0)
    facts = msgspec.structs.replace(two(quiet, quiet), liveness=liveness(State.LOST), coverage=coverage(16, 0))
    verdict = judge_cluster(CONTRACT, facts)
    assert verdict.visibility is ClusterVisibility.NOT_VISIBLE
    assert (verdict.gpus_not_visible, verdict.gpus_reporting, verdict.machines_not_visible) == (16, 0, 2)


@pytest.mark.parametrize("changes", [{"collection": NO_COLLECTOR}, {"spec": NO_CONTACT}, {"spec": None}])
def test_gpus_that_report_stay_visible_without_a_cluster_item(changes: dict[str, Any]) -> None:
    verdict = judge_cluster(CONTRACT, cluster(**changes))
    assert verdict.visibility is ClusterVisibility.PARTLY
    assert (verdict.gpus_not_visible, verdict.gpus_reporting, verdict.machines_not_visible) == (0, 0, 0)
    failed = [one for one in verdict.items if one.item in verdict.not_visible]
    assert failed
    assert all(one.is_whole and one.gpus == 0 and "16 GPUs report" in one.found for one in failed)


def test_cluster_item_lists_the_gpus_that_do_not_report() -> None:
    dark = machine(state=State.LOST, reporting_gpus=0)
    facts = msgspec.structs.replace(two(second=dark), collection=NO_COLLECTOR, coverage=coverage(16, 8))
    verdict = judge_cluster(CONTRACT, facts)
    assert "cluster.collector" in verdict.not_visible
    assert (verdict.gpus_not_visible, verdict.machines_not_visible) == (8, 1)


def test_cluster_item_decides_nothing_while_reporting_gpus_are_unknown() -> None:
    verdict = judge_cluster(CONTRACT, cluster(spec=NO_CONTACT, coverage=None, machines=None))
    assert verdict.not_visible == ("ownership.contact",)
    assert verdict.visibility is ClusterVisibility.UNKNOWN


def test_gpus_that_report_and_break_an_item_are_counted_apart() -> None:
    verdict = judge_cluster(CONTRACT, two(machine(clock_ahead_seconds=9), machine(reporting_gpus=6)))
    assert (verdict.gpus_not_visible, verdict.gpus_reporting) == (10, 8)


def test_machine_of_unknown_size_is_counted_apart() -> None:
    unsized = machine(state=State.NEVER_SEEN, source=GpuSource.NONE, expected_gpus=None, reporting_gpus=None)
    verdict = judge_cluster(CONTRACT, two(second=unsized))
    assert "freshness.machines" in verdict.not_visible
    assert (verdict.machines_not_visible, verdict.machines_without_count, verdict.gpus_not_visible) == (1, 1, 0)
    assert {one.gpus for one in verdict.items if one.item in verdict.not_visible} == {None}


def test_item_counts_the_machines_of_known_size() -> None:
    unsized = machine(state=State.NEVER_SEEN, source=GpuSource.NONE, expected_gpus=None, reporting_gpus=None)
    verdict = judge_cluster(CONTRACT, two(machine(state=State.LOST), unsized))
    assert next(one.gpus for one in verdict.items if one.item == "freshness.machines") == 8


@pytest.mark.parametrize(("expected", "machines", "gpus"), [(None, (), None), (16, (), 16), (None, (MACHINE,), 0)])
def test_gpus_of_a_cluster_are_unknown_without_any_count(
    expected: int | None, machines: tuple[MachineFacts, ...], gpus: int | None
) -> None:
    groups = group_machines([(f"node-{place}", one) for place, one in enumerate(machines)])
    found = coverage(expected, 8 * len(machines), registration=None)
    verdict = judge_cluster(CONTRACT, cluster(spec=NO_CONTACT, coverage=found, machines=tuple(groups)))
    assert next(one.gpus for one in verdict.items if one.item == "ownership.contact") == gpus


def test_nothing_is_known_and_nothing_is_met() -> None:
    facts = ClusterFacts(cluster="east", at=1, hub_version="0.6.0")
    verdict = judge_cluster(CONTRACT, facts)
    assert (verdict.judged_tier, verdict.reached_tier) == (None, None)
    assert not {one.item for one in verdict.items if one.status is ItemStatus.MET}
    assert verdict.visibility is ClusterVisibility.UNKNOWN  # it is not registered, and may have GPUs that report
    assert "metadata.registration" in verdict.not_visible


def test_unknown_item_is_neither_met_nor_not_visible() -> None:
    verdict = judge_cluster(CONTRACT, two(second=machine(clock_ahead_seconds=None)))
    assert verdict.visibility is ClusterVisibility.UNKNOWN
    assert verdict.not_visible == ()
    assert verdict.must.unknown == 1
    assert verdict.must.percent is not None
    assert verdict.must.percent < 100
    assert verdict.reached_tier is Tier.COLLECTOR


def test_lower_tier_is_reached_without_agents() -> None:
    listed = machine(source=GpuSource.NONE, state=State.NEVER_SEEN, reporting_gpus=0, value_age_seconds=None)
    facts = two(listed, listed)
    verdict = judge_cluster(CONTRACT, facts)
    assert (verdict.judged_tier, verdict.reached_tier) == (Tier.COLLECTOR, Tier.COLLECTOR)
    assert verdict.visibility is ClusterVisibility.VISIBLE
    declared = judge_cluster(CONTRACT, msgspec.structs.replace(facts, tier=Tier.AGENT))
    assert (declared.judged_tier, declared.is_declared, declared.reached_tier) == (Tier.AGENT, True, Tier.COLLECTOR)
    assert declared.gpus_not_visible == 16


def test_no_tier_is_reached_without_a_registration() -> None:
    assert judge_cluster(CONTRACT, cluster(spec=None)).reached_tier is None


def test_waived_item_excludes_nothing_and_counts_apart() -> None:
    facts = two(second=machine(clock_ahead_seconds=9))
    verdict = judge_cluster(CONTRACT, facts, [waiver("freshness.clock")])
    assert verdict.visibility is ClusterVisibility.VISIBLE
    assert (verdict.must.waived, verdict.must.not_met, verdict.must.percent) == (1, 0, 100.0)
    assert verdict.reached_tier is Tier.AGENT
    item = next(one for one in verdict.items if one.item == "freshness.clock")
    assert (item.status, item.waiver) == (ItemStatus.NOT_MET, "ticket 4711")


def test_waiver_of_a_met_item_changes_nothing() -> None:
    plain, waived = judge_cluster(CONTRACT, cluster()), judge_cluster(CONTRACT, cluster(), [waiver("freshness.clock")])
    assert plain.must == waived.must


def test_expired_or_foreign_waiver_does_not_count() -> None:
    facts = two(second=machine(clock_ahead_seconds=9))
    waivers = [waiver("freshness.clock", 0), waiver("freshness.clock", -3), waiver("freshness.no_item")]
    verdict = judge_cluster(CONTRACT, facts, waivers)
    assert verdict.not_visible == ("freshness.clock",)
    assert len(verdict.ignored_waivers) == 3
    assert judge_cluster(CONTRACT, facts, [*waivers, waiver("freshness.clock", 2)]).not_visible == ()


@pytest.mark.parametrize("change", [{"since": "1.1"}, {"until": "1.1"}])
def test_item_of_one_valid_version_only_warns(change: dict[str, str]) -> None:
    facts = two(second=machine(clock_ahead_seconds=9))
    verdict = judge_cluster(changed("freshness.clock", **change), facts)
    assert verdict.warnings == ("freshness.clock",)
    assert (verdict.not_visible, verdict.visibility) == ((), ClusterVisibility.VISIBLE)
    assert verdict.must.percent == 100.0
    assert verdict.must.met == judge_cluster(CONTRACT, facts).must.met


def test_announced_item_excludes_once_its_version_is_alone() -> None:
    facts = two(second=machine(clock_ahead_seconds=9))
    later = msgspec.structs.replace(changed("freshness.clock", since="1.1"), versions=("1.1",))
    assert judge_cluster(later, facts).not_visible == ("freshness.clock",)


def test_should_item_never_hides_a_gpu() -> None:
    verdict = judge_cluster(CONTRACT, two(second=machine(xids_watched=False, region=None, invalid_gpus=8)))
    assert verdict.visibility is ClusterVisibility.VISIBLE
    assert {one.item for one in verdict.items if one.status is ItemStatus.NOT_MET} == {
        "node.xids",
        "metadata.placement",
        "exposition.values",
    }


def test_number_of_named_machines_is_bounded() -> None:
    lost = machine(state=State.LOST)
    facts = cluster(*group_machines((f"node-{number:05}", lost) for number in range(5000)))
    verdict = judge_cluster(CONTRACT, facts)
    assert verdict.machines_not_visible == 5000
    assert max(len(one.examples) for one in verdict.items) == MAX_EXAMPLES


BROKEN: dict[str, ClusterFacts] = {
    "node.agent": two(machine(source=GpuSource.EXPORTER)),
    "node.agent_version": two(machine(version="0.1.0")),
    "node.driver": two(machine(driver_works=False)),
    "cluster.collector": cluster(
        collection=collection(msgspec.structs.replace(collection().collectors[0], current=False))
    ),
    "cluster.identity": cluster(collection=collection(state=CollectionState.CONFLICT, detail="two UIDs")),
    "permission.inventory": cluster(
        collection=collection(msgspec.structs.replace(collection().collectors[0], copies=()))
    ),
    "metadata.registration": cluster(spec=None),
    "metadata.environment": cluster(spec=ClusterSpec(team="a", contact="b", expected={"H200": 16})),
    "metadata.expected_gpus": cluster(spec=ClusterSpec(team="a", contact="b", environment="c")),
    "metadata.machine_identity": two(machine(identity_conflict=True)),
    "metadata.gpu_uuid": two(machine(identified_gpus=0)),
    "exposition.push": two(machine(is_scraped=True)),
    "exposition.usage": two(machine(usage_gpus=7)),
    "exposition.gpus_report": two(machine(reporting_gpus=7, identified_gpus=7, usage_gpus=7, condition_gpus=7)),
    "exposition.gpus_located": cluster(coverage=coverage(17)),
    "freshness.cluster": cluster(liveness=liveness(State.LOST)),
    "freshness.machines": two(machine(state=State.STALE)),
    "freshness.heartbeat": two(machine(heartbeat_seconds=120)),
    "freshness.interval": two(machine(interval_seconds=120)),
    "freshness.age": two(machine(value_age_seconds=600)),
    "freshness.clock": two(machine(clock_ahead_seconds=-60)),
    "ownership.team": cluster(spec=ClusterSpec(contact="b", environment="c", expected={"H200": 16})),
    "ownership.contact": cluster(spec=ClusterSpec(team="a", environment="c", expected={"H200": 16})),
}
"""A cluster for each MUST item that breaks it."""


@pytest.mark.parametrize("item", MUSTS)
def test_breaking_a_must_lists_exactly_its_item(item: str) -> None:
    verdict = judge_cluster(CONTRACT, BROKEN[item])
    extra = {"metadata.environment", "metadata.expected_gpus", "ownership.team", "ownership.contact"}
    expected = {item} | (extra if item == "metadata.registration" else set())
    assert set(verdict.not_visible) == expected
    broken = next(one for one in verdict.items if one.item == item)
    assert broken.is_whole or verdict.gpus_not_visible > 0
    assert verdict.visibility is ClusterVisibility.PARTLY


def test_place_is_judged_by_its_own_items() -> None:
    results = {"state_folder": PlaceResult("failed", "read-only"), "clock": PlaceResult("ok", "synchronised")}
    verdicts = judge_place(CONTRACT, PlaceFacts(place=CheckPlace.NODE, results=results), Tier.HOSTS)
    assert {one.item: one.status for one in verdicts} == {
        "node.disk_queue": ItemStatus.NOT_MET,
        "permission.devices": ItemStatus.UNKNOWN,
        "freshness.clock_synchronised": ItemStatus.MET,
    }
    assert judge_place(CONTRACT, PlaceFacts(place=CheckPlace.NODE, results=results), Tier.PULL) == ()


OK_AT = {
    CheckPlace.NODE: ("state_folder", "nvidia_library", "nvidia_device_nodes", "clock"),
    CheckPlace.CLUSTER: ("get namespaces", "list watch nodes", "list watch pods"),
}
"""Results of `gpufleet doctor` at each place."""


@pytest.mark.parametrize(
    ("place", "failed", "item"),
    [
        (CheckPlace.NODE, "state_folder", "node.disk_queue"),
        (CheckPlace.NODE, "nvidia_library", "permission.devices"),
        (CheckPlace.CLUSTER, "list watch pods", "permission.api"),
    ],
)
def test_breaking_a_must_of_a_place_changes_exactly_its_item(place: CheckPlace, failed: str, item: str) -> None:
    found = {name: PlaceResult("failed" if name == failed else "ok", "found") for name in OK_AT[place]}
    verdicts = judge_place(CONTRACT, PlaceFacts(place=place, results=found), Tier.AGENT)
    assert {one.item for one in verdicts if one.status is not ItemStatus.MET} == {item}
    assert {one.id for one in CONTRACT.items_on(place) if one.level is Requirement.MUST} >= {item}


def test_every_must_of_a_place_is_broken_in_a_test() -> None:
    musts = {one.id for one in CONTRACT.items if one.level is Requirement.MUST and one.on is not CheckPlace.HUB}
    assert musts == {"node.disk_queue", "permission.devices", "permission.api"}


_COUNT = st.none() | st.integers(0, 8)
_MACHINES = st.builds(
    machine,
    state=st.none() | st.sampled_from([one for one in State if one is not State.RETIRED]),
    source=st.none() | st.sampled_from(GpuSource),
    expected_gpus=_COUNT,
    reporting_gpus=_COUNT,
    usage_gpus=_COUNT,
    identified_gpus=_COUNT,
    in_kubernetes=st.booleans(),
    version=st.none() | st.text(max_size=8),
    clock_ahead_seconds=st.none() | st.integers(-9, 9),
)


@given(st.lists(_MACHINES, max_size=6), st.none() | st.integers(0, 40), st.none() | st.sampled_from(Tier))
def test_verdict_of_any_facts_is_consistent(
    machines: list[MachineFacts], expected: int | None, tier: Tier | None
) -> None:
    named = [(f"node-{number}", one) for number, one in enumerate(machines)]
    facts = cluster(machines=group_machines(named), coverage=coverage(expected), tier=tier)
    verdict = judge_cluster(CONTRACT, facts)
    items = {one.item: one for one in verdict.items}
    assert bool(verdict.not_visible) == (
        verdict.visibility in (ClusterVisibility.PARTLY, ClusterVisibility.NOT_VISIBLE)
    )
    assert verdict.gpus_reporting <= verdict.gpus_not_visible
    assert all(items[one].status is ItemStatus.NOT_MET for one in verdict.not_visible)
    assert verdict.machines_not_visible <= len(machines)
    assert verdict.machines_without_count <= verdict.machines_not_visible
    assert 0 <= verdict.gpus_not_visible <= max(expected or 0, 8 * len(machines))
    assert _is_sorted(one.item for one in verdict.items)
    if verdict.visibility is ClusterVisibility.VISIBLE:
        assert verdict.must.percent == 100.0


def _is_sorted(items: Iterable[str]) -> bool:
    order = {one.id: place for place, one in enumerate(CONTRACT.items)}
    places = [order[one] for one in items]
    return places == sorted(places)


def test_types_of_the_contract_are_immutable() -> None:
    item: ContractItem = CONTRACT.items[0]
    verdict: ClusterVerdict = judge_cluster(CONTRACT, cluster())
    for record, field in ((item, "title"), (verdict, "cluster")):
        with pytest.raises(AttributeError):
            setattr(record, field, "changed")
