"""Verdicts of a hub: six clusters against a hand-written expectation, outages, restarts, waivers, and broken items."""

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.fleet.contract.check import ItemStatus
from gpufleet.fleet.contract.report import ConformanceStatus
from gpufleet.hub.findings.failures import CONTRACT
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.contract import ContractWaiver
from gpufleet.model.machine import MachineKind
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import Batch
from gpufleet.simulate.fleet.layout import NodeRole
from tests.hub.contract.contract_fleet import (
    BARE,
    CLEAN,
    CLUSTERS,
    COLLECTED,
    EMPTY,
    GPU_LOST,
    NODE_OFF,
    ContractFleet,
)
from tests.hub.liveness.fake_clock_hub import Node

MISSING, PARTIAL, UNKNOWN, WAIVED = (
    ConformanceStatus.MISSING,
    ConformanceStatus.PARTIAL,
    ConformanceStatus.UNKNOWN,
    ConformanceStatus.WAIVED,
)

OF_KUBERNETES = {"permission.claims": MISSING, "metadata.placement": MISSING, "metadata.node_pool": MISSING}

# fmt: off
EXPECTED: dict[str, dict[str, Any]] = {
    CLEAN: {
        "head": ("visible", 3, 3, 100.0, 0, 0), "not_visible": (), "items": OF_KUBERNETES,
    },
    NODE_OFF: {
        "head": ("partly_visible", 3, 1, 87.0, 2, 1),
        "not_visible": ("exposition.gpus_report", "freshness.machines", "freshness.age"),
        "items": {**OF_KUBERNETES, "exposition.gpus_report": PARTIAL, "freshness.machines": PARTIAL,
                  "freshness.age": PARTIAL},
    },
    GPU_LOST: {
        "head": ("partly_visible", 3, 1, 95.7, 1, 1), "not_visible": ("exposition.gpus_report",),
        "items": {**OF_KUBERNETES, "exposition.gpus_report": PARTIAL},
    },
    COLLECTED: {
        "head": ("visible", 1, 1, 100.0, 0, 0), "not_visible": (), "items": OF_KUBERNETES,
    },
    BARE: {
        "head": ("partly_visible", 4, None, 85.0, 4, 1), "not_visible": ("exposition.usage", "exposition.gpus_located"),
        "items": {
            **dict.fromkeys(("node.agent_version", "node.xids"), UNKNOWN),
            **dict.fromkeys((
                "node.holders", "metadata.expected_gpus_agree", "metadata.placement", "exposition.usage",
                "exposition.condition",
            ), MISSING),
            "exposition.gpus_located": PARTIAL,
        },
    },
    EMPTY: {
        "head": ("not_visible", None, None, 38.5, 4, 0),
        "not_visible": ("exposition.gpus_located", "freshness.cluster"),
        "items": {
            **dict.fromkeys((
                "metadata.expected_gpus_agree", "metadata.gpu_uuid", "exposition.usage", "exposition.condition",
                "exposition.values", "exposition.gpus_report", "freshness.machines", "freshness.interval",
                "freshness.age", "ownership.retirement",
            ), UNKNOWN),
            "exposition.gpus_located": PARTIAL, "freshness.cluster": MISSING,
        },
    },
}
# fmt: on
"""Cluster to the head of its report, the items by which GPUs are not visible, and each item that is not met."""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[ContractFleet]:
    made = ContractFleet(tmp_path)
    yield made
    made.hub.end()


def seen(fleet: ContractFleet, cluster: str) -> dict[str, Any]:
    """Return what `EXPECTED` has about a cluster."""
    report = fleet.report(cluster)
    head = report.metadata
    counts = (head.gpus_not_visible, head.machines_not_visible)
    unmet = (ConformanceStatus.IMPLEMENTED, ConformanceStatus.NOT_APPLICABLE)
    return {
        "head": (head.visibility.value, head.tier, head.reached_tier, head.percent, *counts),
        "not_visible": tuple(one.item for one in report.not_visible),
        "items": {item: status for item, status in fleet.statuses(cluster).items() if status not in unmet},
    }


def flips(before: dict[str, ConformanceStatus], after: dict[str, ConformanceStatus]) -> set[str]:
    """Return the items with another status that is known."""
    return {item for item, status in after.items() if status not in (before[item], UNKNOWN)}


async def test_six_clusters_have_the_expected_verdicts(fleet: ContractFleet) -> None:
    await fleet.run(10)
    assert fleet.hub.status.failure == ""
    assert {name: seen(fleet, name) for name in CLUSTERS} == EXPECTED
    counts = fleet.hub.contract.counts()
    assert (counts[GPU_LOST, ItemStatus.NOT_MET], counts[CLEAN, ItemStatus.UNKNOWN]) == (4, 0)
    record = await fleet.hub.cluster(GPU_LOST)
    assert record.contract is not None
    assert (record.contract.not_visible, record.contract.gpus_not_visible) == (("exposition.gpus_report",), 1)


async def test_outage_of_the_store_changes_no_known_status(fleet: ContractFleet) -> None:
    await fleet.run(6)
    before = {name: fleet.statuses(name) for name in CLUSTERS}
    fleet.hub.store.down = True
    fleet.hub.flushes = False
    await fleet.run(3)
    for name in CLUSTERS:
        assert flips(before[name], fleet.statuses(name)) == set()
    assert fleet.report(CLEAN).metadata.visibility == "unknown"
    assert fleet.report(CLEAN).metadata.tier == 3
    fleet.hub.store.down, fleet.hub.flushes = False, True
    await fleet.run(1)
    assert fleet.statuses(CLEAN) == before[CLEAN]
    item = fleet.hub.contract._judged[CLEAN].history.find("exposition.usage")
    assert item is not None
    assert (item.status, item.since) == (ItemStatus.MET, item.seen[ItemStatus.MET].first)


async def test_outage_of_the_registry_changes_no_known_status(fleet: ContractFleet) -> None:
    await fleet.run(4)
    before = {name: fleet.statuses(name) for name in CLUSTERS}
    fleet.hub.registered.is_down = True
    await fleet.run(2)
    assert CONTRACT in fleet.hub.status.failures
    for name in (CLEAN, COLLECTED, BARE, EMPTY):
        assert flips(before[name], fleet.statuses(name)) == set()


async def test_outage_of_the_hub_is_not_held_against_clusters(fleet: ContractFleet) -> None:
    await fleet.run(4)
    before, since = fleet.statuses(CLEAN), fleet.report(CLEAN).metadata.visible_since
    fleet.hub.restart_after(1800)
    await fleet.hub.evaluator.evaluate(fleet.hub.threads)
    assert flips(before, fleet.statuses(CLEAN)) == set()
    assert fleet.report(CLEAN).metadata.visible_since == since
    first = {one.id: one.first_seen for own in fleet.report(CLEAN).spec.values() for one in own}
    assert first["ownership.team"] == since


@pytest.mark.parametrize(
    ("changes", "items"),
    [
        ({"contact": None}, {"ownership.contact"}),
        ({"team": None}, {"ownership.team"}),
        ({"environment": None}, {"metadata.environment"}),
        ({"expected": {}}, {"metadata.expected_gpus", "metadata.expected_gpus_agree"}),
        ({"expected": {"H200": 6}}, {"metadata.expected_gpus_agree", "exposition.gpus_located"}),
    ],
)
async def test_broken_registration_changes_only_its_items(
    fleet: ContractFleet, changes: dict[str, Any], items: set[str]
) -> None:
    await fleet.run(2)
    before = {name: fleet.statuses(name) for name in CLUSTERS}
    fleet.register(CLEAN, **changes)
    await fleet.run(1)
    assert {name: flips(before[name], fleet.statuses(name)) for name in (CLEAN, COLLECTED)} == {
        CLEAN: items,
        COLLECTED: set(),
    }


async def test_missing_batches_change_only_their_item(fleet: ContractFleet) -> None:
    await fleet.run(2)
    before = fleet.statuses(BARE)
    fleet.host.seq += 3
    await fleet.run(1)
    assert flips(before, fleet.statuses(BARE)) == {"freshness.delivery"}


async def test_waiver_and_declared_tier_count(fleet: ContractFleet) -> None:
    until = to_datetime(fleet.hub.clock.now_ns() + 86_400 * NANOS)
    waivers = (ContractWaiver(item="exposition.gpus_report", until=until, reason="ticket 4711"),)
    fleet.register(GPU_LOST, waivers=waivers)
    fleet.register(COLLECTED, tier=3)
    await fleet.run(6)
    assert fleet.statuses(GPU_LOST)["exposition.gpus_report"] is WAIVED
    assert fleet.report(GPU_LOST).metadata.visibility == "visible"
    declared = fleet.report(COLLECTED)
    assert (declared.metadata.tier, declared.metadata.is_declared) == (3, True)
    assert "node.agent" in {one.item for one in declared.not_visible}


async def test_critical_finding_counts_until_acknowledged(fleet: ContractFleet) -> None:
    await fleet.run(8)
    (evidence,) = _evidence(fleet, GPU_LOST, "ownership.critical_findings")
    assert "without an acknowledgement" in evidence
    assert fleet.statuses(GPU_LOST)["ownership.critical_findings"] is ConformanceStatus.IMPLEMENTED  # for 24 h


async def test_cluster_without_a_verdict_is_judged_by_its_registration(fleet: ContractFleet) -> None:
    report = fleet.hub.contract.report("new", ClusterSpec(team="training"), fleet.hub.clock.now_ns())
    statuses = {one.id: one.status for own in report.spec.values() for one in own}
    assert statuses["ownership.team"] is ConformanceStatus.IMPLEMENTED
    assert statuses["freshness.cluster"] is UNKNOWN
    assert fleet.hub.contract.summary("new") is None


async def test_new_cluster_is_not_judged_before_an_interval_of_data(fleet: ContractFleet) -> None:
    await fleet.hub.evaluator.evaluate(fleet.hub.threads)
    assert {fleet.hub.contract.summary(name) for name in CLUSTERS} == {None}
    report = fleet.report(CLEAN)
    assert report.metadata.age_seconds is None
    assert fleet.statuses(CLEAN)["freshness.cluster"] is UNKNOWN
    await fleet.run(2)
    assert fleet.statuses(CLEAN)["freshness.cluster"] is ConformanceStatus.IMPLEMENTED
    assert fleet.statuses(EMPTY)["freshness.cluster"] is MISSING
    assert fleet.report(CLEAN).metadata.age_seconds == 0
    await fleet.hub.advance(20)
    assert fleet.report(CLEAN).metadata.age_seconds == 20


def with_labels(batch: Batch) -> Batch:
    """Add the labels of a cloud to the nodes of a collector."""
    part = batch.cluster_part
    if part is None:
        return batch
    placed = [msgspec.structs.replace(one, region="eu-1", zone="a", instance_type="hgx") for one in part.nodes]
    return msgspec.structs.replace(batch, cluster_part=msgspec.structs.replace(part, nodes=placed))


def without_collector(batch: Batch) -> Batch | None:
    """Drop the batches of a collector."""
    return None if batch.sender.endswith("-collector") else batch


async def test_placement_is_unknown_while_the_collector_is_down(tmp_path: Path) -> None:
    fleet = ContractFleet(tmp_path, reporting=(CLEAN,))
    fleet.rewrites[CLEAN].append(with_labels)
    await fleet.run(2)
    assert fleet.statuses(CLEAN)["metadata.placement"] is ConformanceStatus.IMPLEMENTED
    fleet.rewrites[CLEAN].append(without_collector)
    await fleet.run(40)
    found = fleet.statuses(CLEAN)
    assert found["cluster.collector"] is MISSING
    assert found["metadata.placement"] is UNKNOWN
    fleet.hub.end()


async def test_new_machine_has_time_for_its_first_values(fleet: ContractFleet) -> None:
    await fleet.run(2)
    host = Node("host-2", BARE, first_gpu=1)
    host.sends_inventory = True

    def batches() -> list[Batch]:
        batch = to_rows(decode(host.body(fleet.hub.clock)))
        reports = [msgspec.structs.replace(one, samples=()) for one in batch.reports]
        return [msgspec.structs.replace(batch, reports=tuple(reports))]

    fleet.more = batches
    await fleet.run(1)
    assert fleet.statuses(BARE)["exposition.gpus_report"] is UNKNOWN
    await fleet.run(2)
    assert fleet.statuses(BARE)["exposition.gpus_report"] is PARTIAL


@pytest.mark.parametrize("role", [NodeRole.VM, NodeRole.VGPU, NodeRole.MIG, NodeRole.IDLE])
async def test_cluster_of_each_role_of_gpus_is_visible(role: NodeRole, tmp_path: Path) -> None:
    fleet = ContractFleet(tmp_path, reporting=(CLEAN,), roles=(role, role))
    await fleet.run(3)
    assert seen(fleet, CLEAN)["head"] == ("visible", 3, 3, 100.0, 0, 0)
    fleet.hub.end()


def without_values_of_guests(batch: Batch) -> Batch:
    """Remove the readings of GPUs in guests. The guests answer."""
    reports = [
        msgspec.structs.replace(one, samples=tuple([each for each in one.samples if each.view is None]))
        if one.machine.kind is MachineKind.GUEST
        else one
        for one in batch.reports
    ]
    return msgspec.structs.replace(batch, reports=tuple(reports))


async def test_guests_without_values_hide_their_gpus(tmp_path: Path) -> None:
    fleet = ContractFleet(tmp_path, reporting=(CLEAN,), roles=(NodeRole.VM, NodeRole.VM))
    await fleet.run(3)
    before = fleet.statuses(CLEAN)
    fleet.rewrites[CLEAN].append(without_values_of_guests)
    await fleet.run(3)
    assert flips(before, fleet.statuses(CLEAN)) == {"exposition.gpus_report"}
    assert fleet.report(CLEAN).metadata.gpus_not_visible == 4
    await fleet.run(4)
    assert flips(before, fleet.statuses(CLEAN)) == {"exposition.gpus_report", "freshness.age"}
    assert fleet.report(CLEAN).metadata.gpus_not_visible == 4  # each GPU once
    fleet.hub.end()


async def test_cluster_without_any_agent_left_keeps_its_tier(tmp_path: Path) -> None:
    fleet = ContractFleet(tmp_path, reporting=(CLEAN,))
    await fleet.run(3)
    fleet.rewrites[CLEAN].append(only_collector)
    await fleet.run(70)
    fleet.hub.restart_after(60)
    await fleet.run(2)
    head = fleet.report(CLEAN).metadata
    assert (head.visibility, head.tier, head.reached_tier, head.gpus_not_visible) == ("partly_visible", 3, 1, 4)
    fleet.hub.end()


def only_collector(batch: Batch) -> Batch | None:
    """Drop the batches of agents."""
    return batch if batch.sender.endswith("-collector") else None


async def test_damaged_history_is_reported_and_never_overwritten(fleet: ContractFleet) -> None:
    fleet.hub.registered.save_contract_state(b"damaged")
    await fleet.run(1)
    assert "damaged" in fleet.hub.status.failures[CONTRACT]
    assert fleet.hub.registered.contract_state() == b"damaged"
    assert fleet.statuses(CLEAN)["ownership.team"] is ConformanceStatus.IMPLEMENTED


def _evidence(fleet: ContractFleet, cluster: str, item: str) -> tuple[str, ...]:
    return next(one.evidence for own in fleet.report(cluster).spec.values() for one in own if one.id == item)


def test_report_is_valid_json_for_a_client(fleet: ContractFleet) -> None:
    report = fleet.report(EMPTY)
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report
    assert report.metadata.at.tzinfo is dt.UTC
