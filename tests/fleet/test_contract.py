"""Checks of the adoption contract: each has subjects that fail it, that pass, and with an unknown outcome."""

from typing import NamedTuple

import msgspec
import pytest

from gpufleet.doctor import examine
from gpufleet.doctor.facts import NodeFacts
from gpufleet.fleet.contract.check import CheckOutcome, ClusterCheck, DoctorCheck, ItemStatus, MachineCheck
from gpufleet.fleet.contract.facts import (
    ClusterFacts,
    GpuSource,
    MachineFacts,
    PlaceFacts,
    PlaceResult,
    group_machines,
    observed_tier,
    rounded_up,
)
from gpufleet.fleet.contract.records import (
    CheckPlace,
)
from gpufleet.fleet.contract.table import CHECKS
from gpufleet.model.api.kubernetes import ClusterCollection, CollectionState
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.contract import Tier
from gpufleet.model.kubernetes import CopyState
from gpufleet.model.liveness import State
from gpufleet.model.machine import MachineKind
from gpufleet.wiring.contract import load_contract
from tests.support.contract_facts import (
    MACHINE,
    SPEC,
    bare,
    cluster,
    collection,
    collector,
    copies,
    coverage,
    liveness,
    machine,
)

CONTRACT = load_contract()
MET, NOT_MET, UNKNOWN, INAPPLICABLE = (
    ItemStatus.MET,
    ItemStatus.NOT_MET,
    ItemStatus.UNKNOWN,
    ItemStatus.NOT_APPLICABLE,
)
ABSENT = ClusterCollection(state=CollectionState.ABSENT, detail="no collector of this cluster has reported")


class Case(NamedTuple):
    """Subjects of a check: one that fails it, some that pass, some with an unknown outcome."""

    fails: ClusterFacts | MachineFacts | PlaceFacts
    passes: tuple[ClusterFacts | MachineFacts | PlaceFacts, ...]
    unknown: tuple[ClusterFacts | MachineFacts | PlaceFacts, ...] = ()
    gpus: int | None = None


def doctor(place: CheckPlace, **results: str) -> PlaceFacts:
    found = {name: {"verdict": verdict, "found": "found"} for name, verdict in results.items()}
    return PlaceFacts(place=place, results=msgspec.convert(found, dict[str, PlaceResult]))


def node(**results: str) -> PlaceFacts:
    return doctor(CheckPlace.NODE, **results)


def api(namespaces: str, nodes: str, pods: str) -> PlaceFacts:
    names = ("get namespaces", "list watch nodes", "list watch pods")
    return doctor(CheckPlace.CLUSTER, **dict(zip(names, (namespaces, nodes, pods), strict=True)))


UNSIZED = machine(expected_gpus=None, reporting_gpus=None)
UNREGISTERED = cluster(spec=None)
HERE = (cluster(),)

CASES = {
    "cluster_registered": Case(UNREGISTERED, HERE),
    "environment_declared": Case(cluster(spec=ClusterSpec(team="a")), HERE),
    "team_declared": Case(cluster(spec=ClusterSpec(contact="a")), HERE),
    "contact_declared": Case(UNREGISTERED, HERE),
    "expected_gpus_declared": Case(cluster(spec=ClusterSpec(team="a")), HERE),
    "expected_gpus_agree": Case(
        cluster(coverage=coverage(16, pci=15, kubernetes=14)),
        (cluster(coverage=coverage(16, kubernetes=8)),),
        (
            cluster(coverage=None),
            cluster(coverage=coverage(16, pci=None)),
            cluster(coverage=coverage(16, pci=15), machines=None),
            cluster(coverage=coverage(16, pci=15), collection=ABSENT),
            cluster(*group_machines([("a", MACHINE), ("b", UNSIZED)]), coverage=coverage(16, pci=8)),
        ),
    ),
    "gpus_located": Case(
        cluster(coverage=coverage(24)),
        (cluster(), cluster(coverage=coverage(8))),
        (
            cluster(coverage=None),
            cluster(coverage=coverage(None)),
            cluster(machines=None),
            cluster(*group_machines([("a", UNSIZED)]), coverage=coverage(24)),
        ),
        gpus=8,
    ),
    "cluster_current": Case(
        cluster(liveness=liveness(State.STALE)),
        (cluster(), cluster(liveness=liveness(State.LATE))),
        (cluster(liveness=None),),
    ),
    "collector_reports": Case(cluster(collection=ABSENT), HERE, (cluster(collection=None),)),
    "kubernetes_identity": Case(
        cluster(collection=collection(state=CollectionState.CONFLICT, detail="two UIDs")),
        HERE,
        (
            cluster(collection=None),
            cluster(collection=ABSENT),
            cluster(collection=collection(collector(system_uid=""))),
        ),
    ),
    "inventory_copied": Case(
        cluster(collection=collection(collector(copies=copies(pods=CopyState.FORBIDDEN)))),
        (cluster(), cluster(collection=collection(collector(copies=()), collector()))),
        (cluster(collection=ABSENT), cluster(collection=collection(collector(copies=copies(nodes=CopyState.STALE))))),
    ),
    "claims_copied": Case(
        cluster(collection=collection(collector(copies=copies()[:2]))),
        (cluster(), cluster(collection=collection(collector(copies=copies(resourceslices=CopyState.NOT_SERVED))))),
        (cluster(collection=collection(collector(copies=copies(resourceclaims=CopyState.STARTING)))),),
    ),
    "critical_findings_acknowledged": Case(
        cluster(unacknowledged_critical_seconds=24.1 * 3600),
        (cluster(), cluster(unacknowledged_critical_seconds=24.0 * 3600)),
        (cluster(unacknowledged_critical_seconds=None),),
    ),
    "agent_reads": Case(
        machine(source=GpuSource.EXPORTER),
        (MACHINE,),
        (machine(source=None), machine(source=GpuSource.NONE, state=State.LOST)),
    ),
    "version_supported": Case(
        machine(version="0.3.9"),
        (MACHINE, machine(version="0.4.0"), machine(version="0.6.7")),
        (machine(version=None), machine(version="unknown")),
    ),
    "driver_works": Case(
        machine(driver_works=False),
        (MACHINE, machine(driver_works=None), machine(driver_works=None, reporting_gpus=1)),
        (
            machine(driver_works=None, reporting_gpus=0),
            machine(driver_works=None, source=GpuSource.EXPORTER),
            machine(state=State.LOST),
        ),
    ),
    "xids_watched": Case(machine(xids_watched=False), (MACHINE,), (machine(xids_watched=None),)),
    "holders_known": Case(machine(unattributed_gpus=3), (MACHINE,), (machine(unattributed_gpus=None),), gpus=3),
    "machine_current": Case(
        machine(state=State.LOST), (MACHINE, machine(state=State.LATE)), (machine(state=None),)
    ),
    "machine_identified": Case(
        machine(evidence=("name",)),
        (MACHINE, machine(evidence=("machine_id",))),
        (machine(state=State.NEVER_SEEN, evidence=()), machine(identity_conflict=None)),
    ),
    "gpus_identified": Case(machine(identified_gpus=6), (MACHINE,), (machine(identified_gpus=None),), gpus=2),
    "placement_known": Case(
        machine(zone=None),
        (MACHINE, machine(has_pool=None)),
        (
            machine(zone=None, has_pool=None),
            machine(region=None, in_kubernetes=False, has_pool=None),
            machine(region=None, kind=MachineKind.GUEST, state=State.NEVER_SEEN),
        ),
    ),
    "pool_labelled": Case(machine(has_pool=False), (MACHINE,), (machine(has_pool=None),)),
    "sender_pushes": Case(machine(is_scraped=True), (MACHINE,), (machine(is_scraped=None),)),
    "gpus_report": Case(
        machine(reporting_gpus=5),
        (MACHINE,),
        (machine(reporting_gpus=None), machine(expected_gpus=None)),
        gpus=3,
    ),
    "usage_reported": Case(machine(usage_gpus=7), (MACHINE,), (machine(usage_gpus=None),), gpus=1),
    "condition_reported": Case(machine(condition_gpus=0), (MACHINE,), (machine(condition_gpus=None),), gpus=8),
    "values_valid": Case(machine(invalid_gpus=1), (MACHINE,), (machine(invalid_gpus=None),), gpus=1),
    "heartbeat_interval": Case(
        machine(heartbeat_seconds=61), (MACHINE, machine(heartbeat_seconds=60)), (machine(heartbeat_seconds=None),)
    ),
    "sample_interval": Case(machine(interval_seconds=120), (MACHINE,), (machine(interval_seconds=None),)),
    "sample_age": Case(
        machine(value_age_seconds=360),
        (MACHINE, machine(value_age_seconds=300)),
        (machine(value_age_seconds=None),),
    ),
    "clock_offset": Case(
        machine(clock_ahead_seconds=-6), (MACHINE, machine(clock_ahead_seconds=5)), (machine(clock_ahead_seconds=None),)
    ),
    "batches_delivered": Case(
        machine(dropped_batches=1), (MACHINE,), (machine(missing_batches=None), machine(dropped_batches=None))
    ),
    "lost_retired": Case(
        machine(state=State.LOST, unseen_days=8),
        (MACHINE, machine(state=State.LOST, unseen_days=7)),
        (machine(state=None), machine(state=State.LOST, unseen_days=None)),
    ),
    "disk_queue_usable": Case(
        node(state_folder="warning"), (node(state_folder="ok"),), (node(), node(state_folder="unknown"))
    ),
    "devices_permitted": Case(
        node(nvidia_library="ok", nvidia_device_nodes="failed"),
        (
            node(nvidia_library="ok", nvidia_device_nodes="ok"),
            node(nvidia_library="ok", nvidia_device_nodes="not_applicable"),
        ),
        (node(nvidia_library="ok"),),
    ),
    "clock_synchronised": Case(node(clock="warning"), (node(clock="ok"),), (node(clock="unknown"),)),
    "api_permitted": Case(
        api("ok", "ok", "failed"), (api("ok", "ok", "ok"),), (api("ok", "unknown", "ok"),)
    ),
}  # fmt: skip


def run(name: str, subject: ClusterFacts | MachineFacts | PlaceFacts) -> CheckOutcome:
    check = CHECKS[name]
    limits = next(one.limits for one in CONTRACT.items if one.check == name)
    if isinstance(check, ClusterCheck):
        assert isinstance(subject, ClusterFacts)
        return check.run(subject, limits)
    if isinstance(check, MachineCheck):
        assert isinstance(subject, MachineFacts)
        return check.run(subject, cluster(), limits)
    assert isinstance(check, DoctorCheck)
    assert isinstance(subject, PlaceFacts)
    return check.run(subject)


def test_every_check_has_a_case_and_an_item() -> None:
    assert CASES.keys() == CHECKS.keys() == {one.check for one in CONTRACT.items}


@pytest.mark.parametrize("name", CASES)
def test_check_separates_failing_from_passing_subjects(name: str) -> None:
    case = CASES[name]
    failed = run(name, case.fails)
    assert (failed.status, failed.gpus) == (NOT_MET, case.gpus)
    assert failed.found
    assert [run(name, one).status for one in case.passes] == [MET] * len(case.passes)
    assert [run(name, one).status for one in case.unknown] == [UNKNOWN] * len(case.unknown)


def test_machine_without_gpus_is_not_judged_by_gpu_items() -> None:
    idle = machine(expected_gpus=0, reporting_gpus=0, source=GpuSource.NONE, state=State.NEVER_SEEN)
    found = {name: run(name, idle).status for name, check in CHECKS.items() if isinstance(check, MachineCheck)}
    assert {name for name, status in found.items() if status is not INAPPLICABLE} == {"lost_retired"}
    assert found["lost_retired"] is MET


def test_guest_has_neither_pool_nor_holders_of_its_own() -> None:
    guest = machine(kind=MachineKind.GUEST, has_pool=None, unattributed_gpus=8)
    assert {run(name, guest).status for name in ("pool_labelled", "holders_known")} == {INAPPLICABLE}


def test_node_on_which_nothing_ever_reported_has_no_agent() -> None:
    assert run("agent_reads", machine(source=GpuSource.NONE, state=State.NEVER_SEEN)).status is NOT_MET


def test_placement_of_a_host_is_in_its_own_reports() -> None:
    host = machine(region=None, in_kubernetes=False, has_pool=None)
    check = CHECKS["placement_known"]
    assert isinstance(check, MachineCheck)
    assert check.run(host, bare(), {}).status is NOT_MET


def test_more_gpus_than_declared_are_found_without_complete_evidence() -> None:
    facts = cluster(coverage=coverage(16, pci=17), collection=ABSENT)
    assert run("expected_gpus_agree", facts).status is NOT_MET


def test_newer_sender_than_the_hub_is_not_supported() -> None:
    assert run("version_supported", machine(version="0.7.0")).status is NOT_MET
    assert run("version_supported", machine(version="1.6.0")).status is NOT_MET


def test_incomplete_copy_is_not_met() -> None:
    whole = copies()
    for changed in ({"is_complete": False}, {"rejected": 1, "example": "pod a: bad uid"}):
        record = msgspec.structs.replace(whole[0], **changed)
        facts = cluster(collection=collection(collector(copies=(record, *whole[1:]))))
        assert run("inventory_copied", facts).status is NOT_MET


def test_evidence_of_hostile_length_is_bounded() -> None:
    facts = cluster(spec=ClusterSpec(team="a" * 253, expected={f"{number}" * 250: 1 for number in range(9)}))
    assert all(len(run(name, facts).found) <= 300 for name in ("team_declared", "expected_gpus_declared"))


def test_results_of_doctor_checks_exist() -> None:
    names = {one.name for one in examine(NodeFacts())}
    of_nodes = [one for one in CHECKS.values() if isinstance(one, DoctorCheck) and one.at is CheckPlace.NODE]
    assert {result for one in of_nodes for result in one.results} <= names


def test_results_of_collector_permissions_exist() -> None:
    from gpufleet.cluster.permissions import required_permissions
    from gpufleet.config.cluster import ClusterAgentConfig

    names = {f"{' '.join(one.verbs)} {one.name}" for one in required_permissions(ClusterAgentConfig())}
    check = CHECKS["api_permitted"]
    assert isinstance(check, DoctorCheck)
    assert set(check.results) <= names


def test_machines_with_equal_facts_are_one_group() -> None:
    groups = group_machines([("b", MACHINE), ("c", machine(reporting_gpus=7)), ("a", machine())])
    assert [one.names for one in groups] == [("a", "b"), ("c",)]


@pytest.mark.parametrize(("seconds", "step", "rounded"), [(0, 60, 0), (1, 60, 60), (60, 60, 60), (-4.2, 1, -5)])
def test_times_are_rounded_away_from_zero(seconds: float, step: float, rounded: float) -> None:
    assert rounded_up(seconds, step) == rounded


@pytest.mark.parametrize(
    ("facts", "tier"),
    [
        (cluster(), Tier.AGENT),
        (bare(), Tier.HOSTS),
        (cluster(*group_machines([("a", MACHINE), ("b", machine(source=GpuSource.NONE)),
                                  ("c", machine(source=GpuSource.NONE))])), Tier.COLLECTOR),
        (cluster(*group_machines([("a", MACHINE), ("b", machine(source=GpuSource.NONE))])), Tier.AGENT),
        (cluster(*group_machines([("a", machine(source=GpuSource.EXPORTER))])), Tier.EXPORTERS),
        (bare(*group_machines([("a", machine(source=GpuSource.PULL, in_kubernetes=False))])), Tier.PULL),
        (cluster(machines=()), Tier.COLLECTOR),
        (bare(machines=()), None),
    ],
)  # fmt: skip
def test_observed_tier_is_that_of_most_machines(facts: ClusterFacts, tier: Tier | None) -> None:
    assert observed_tier(facts) is tier


def test_registration_of_the_example_is_complete() -> None:
    assert all((SPEC.environment, SPEC.team, SPEC.contact, SPEC.expected))
