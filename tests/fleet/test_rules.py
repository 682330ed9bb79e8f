"""Rules about the fleet: each has a subject for which it fires, a healthy one, and one with an unknown verdict."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

from gpufleet.fleet.rules.counts import class_maxima
from gpufleet.fleet.rules.drift import differs_from_pool
from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.inputs import INPUTS, TEXTS
from gpufleet.fleet.rules.judgement import RuleVerdict, RuleVerdicts, judge
from gpufleet.fleet.rules.reference import render_findings_reference
from gpufleet.fleet.rules.rule import ID_PREFIX, Thresholds
from gpufleet.fleet.rules.table import RULES, RULES_BY_ID
from gpufleet.fleet.rules.xids import COLUMN_OF_ACTION, XidFacts
from gpufleet.model.errors import ConfigError
from gpufleet.model.finding import RuleScope, Severity
from gpufleet.model.xid import XIDS, XidAction
from gpufleet.simulate.fleet.rule_faults import outage_times, simulations
from tests.support.fleet_facts import WORKING

Facts = Mapping[str, float | None]
MIB = 2.0**20


class Case(NamedTuple):
    """Inputs of a subject for which a rule fires, and changes that make it healthy, unknown, or worse."""

    fires: Facts
    healthy: Facts
    unknown: Facts
    escalates: Facts | None = None


def flag(name: str) -> Case:
    return Case({name: 1}, {name: 0}, {name: None})


def count(name: str, firing: float = 1, healthy: float = 0) -> Case:
    return Case({name: firing}, {name: healthy}, {name: None})


def recent(name: str, *, firing: float = 1, healthy: float = 0, hours: int = 1) -> Case:
    """Return the case of a rule about a past time, which is unknown until the hub has run for that time."""
    return Case(
        {name: firing}, {name: healthy, "uptime_seconds": hours * 3600}, {name: healthy, "uptime_seconds": 3599}
    )


HELD = {"held": 1, "held_seconds": 3600, "utilization_ratio": 0, "memory_total_bytes": 80e9}

CASES = {
    # hub
    "hub.not_ingesting": count("ingesting", 0, 1),
    "hub.outage": count("down_seconds", 301, 300),
    "hub.store_unreachable": count("store_answers", 0, 1),
    "hub.registry_unreachable": count("registry_answers", 0, 1),
    "hub.flush_lag": count("flush_lag_seconds", 61, 60),
    "hub.log_filling": Case(
        {"log_used_ratio": 0.6}, {"log_used_ratio": 0.5}, {"log_used_ratio": None}, {"log_used_ratio": 0.95}
    ),
    "hub.disk_filling": Case(
        {"disk_free_ratio": 0.09}, {"disk_free_ratio": 0.1}, {"disk_free_ratio": None}, {"disk_free_ratio": 0.02}
    ),
    "hub.rejecting": Case(
        {"rejected_bodies": 60, "received_bodies": 1000},
        {"rejected_bodies": 50, "uptime_seconds": 3600},
        {"rejected_bodies": 50, "uptime_seconds": 3599},
    ),
    "hub.clock_skew": Case(
        {"clock_behind_seconds": -6},
        {"clock_behind_seconds": 5},
        {"clock_behind_seconds": None},
        {"clock_behind_seconds": -61},
    ),
    "hub.flush_failing": recent("flush_failures"),
    "hub.quarantine": recent("quarantined_batches"),
    "hub.task_restarts": recent("task_restarts"),
    "hub.schema_drift": recent("unknown_names"),
    "hub.series_churn": recent("uncached_series"),
    # heartbeat and freshness
    "hub.network": Case(
        {"jointly_late_clusters": 4, "clusters": 10}, {"jointly_late_clusters": 3}, {"jointly_late_clusters": None}
    ),
    "cluster.stale": Case(
        {"unseen_seconds": 300, "late_after_seconds": 75, "stale_after_seconds": 300},
        {"unseen_seconds": 299},
        {"unseen_seconds": None},
    ),
    "cluster.collector_broken": Case(
        {"unseen_seconds": 30, "late_after_seconds": 75, "newest_value_seconds": 301},
        {"newest_value_seconds": 300},
        {"newest_value_seconds": None},
    ),
    "cluster.partial": Case(
        {"expected_gpus": 100, "reporting_gpus": 99},
        {"reporting_gpus": 100},
        {"expected_gpus": None},
        {"reporting_gpus": 89},
    ),
    "node.missing": Case(
        {"unseen_seconds": 91, "interval_seconds": 30},
        {"unseen_seconds": 90},
        {"unseen_seconds": None},
        {"unseen_seconds": 901},
    ),
    "node.retired": Case(
        {"node_deleted_seconds": 86_399}, {"node_deleted_seconds": 86_400}, {"node_deleted_seconds": None}
    ),
    "node.inventory_unconfirmed": Case(
        {"inventory_age_seconds": 1201, "inventory_interval_seconds": 600},
        {"inventory_age_seconds": 1200},
        {"inventory_age_seconds": None},
    ),
    "node.gpus_stale": Case(
        {"gpu_value_seconds": 301, "gpu_interval_seconds": 10}, {"gpu_value_seconds": 300}, {"gpu_value_seconds": None}
    ),
    "gpu.metrics_missing": Case(
        {"failed_core_readings": 0, "missing_core_readings": 1},
        {"missing_core_readings": 0},
        {"missing_core_readings": None},
    ),
    "allocation.unavailable": count("answers", 0, 1),
    # counts
    "node.gpu_count_mismatch": Case(
        {"pci_gpus": 8, "nvml_gpus": 7, "kubernetes_gpus": 7, "allocatable_gpus": 7},
        {"nvml_gpus": 8, "kubernetes_gpus": 8, "allocatable_gpus": 8},
        {"nvml_gpus": None, "kubernetes_gpus": None, "allocatable_gpus": None},
    ),
    "node.expected_unknown": count("expectation_sources", 0, 1),
    "node.below_class_max": Case({"nvml_gpus": 7, "class_gpus": 8}, {"nvml_gpus": 8}, {"class_gpus": None}),
    "node.hidden_when_idle": Case(
        {"imported": 1, "reporting_gpus": 3, "allocated_gpus": 3, "kubernetes_gpus": 8},
        {"reporting_gpus": 8},
        {"allocated_gpus": None},
    ),
    "gpu.lost": flag("lost"),
    "allocation.partial": Case({"devices": 7, "expected_devices": 8}, {"devices": 8}, {"expected_devices": None}),
    # identity and duplicates
    "cluster.identity_conflict": count("kubernetes_uids", 2, 1),
    "node.identity_conflict": flag("identity_conflict"),
    "node.duplicate_agent": count("agents", 2, 1),
    "sender.identity_conflict": recent("shared_epoch_batches", firing=3, healthy=2, hours=24),
    "gpu.duplicate_uuid": count("machines", 2, 1),
    "gpu.replaced": count("replaced_seconds", 60, float("inf")),
    "gpu.holder_conflict": flag("contradicting_holders"),
    "allocation.tenant_overlap": count("overlapping_tenants"),
    # frozen and impossible values
    "gpu.frozen": Case(
        {"noisy_readings": 5, "identical_cycles": 10, "utilization_ratio": 0.5},
        {"utilization_ratio": 0},
        {"identical_cycles": None},
    ),
    "gpu.counter_frozen": Case(
        {"identical_energy_cycles": 3, "power_watts": 70}, {"identical_energy_cycles": 2}, {"power_watts": None}
    ),
    "gpu.counter_reset": count("unexplained_resets"),
    "gpu.invalid_value": count("invalid_readings"),
    "gpu.impossible_value": Case(
        {"memory_used_bytes": 81e9, "memory_total_bytes": 80e9, "power_watts": 700, "power_limit_watts": 700},
        {"memory_used_bytes": 80e9},
        {"memory_used_bytes": None, "power_watts": None},
    ),
    "gpu.unit_mismatch": count("reader_ratio", 1000, 1.02),
    "gpu.source_mismatch": Case({"bound_to_vfio": 1, "host_values": 1}, {"bound_to_vfio": 0}, {"bound_to_vfio": None}),
    "gpu.utilization_missing_at_power": Case(
        {"utilization_ratio": 0, "power_watts": 500, "power_limit_watts": 700},
        {"power_watts": 100},
        {"power_limit_watts": None},
    ),
    "cluster.zero_anomaly": Case(
        {"zero_utilization_ratio": 1, "busy_before_ratio": 0.6},
        {"busy_before_ratio": 0.1, "uptime_seconds": 3600},
        {"busy_before_ratio": 0.1, "uptime_seconds": 3599},
    ),
    # use and allocation
    "gpu.allocated_idle": Case(
        {**HELD, "memory_used_bytes": 1e9}, {"utilization_ratio": 0.5}, {"utilization_ratio": None}
    ),
    "gpu.allocated_parked": Case({**HELD, "memory_used_bytes": 40e9}, {"memory_used_bytes": 1e9}, {"held": None}),
    "gpu.used_unallocated": Case(
        {"held": 0, "utilization_ratio": 0, "processes": 1, "memory_used_bytes": MIB}, {"held": 1}, {"held": None}
    ),
    "gpu.busy_at_low_power": Case(
        {"utilization_ratio": 1, "power_watts": 100, "power_limit_watts": 700},
        {"power_watts": 600},
        {"power_watts": None},
    ),
    "cluster.attribution_gap": Case(
        {"allocated_devices": 100, "unattributed_devices": 3}, {"unattributed_devices": 2}, {"allocated_devices": None}
    ),
    "cluster.machine_limit": Case(
        {"machines_ratio": 0.9}, {"machines_ratio": 0.89}, {"machines_ratio": None}, {"machines_ratio": 1.0}
    ),
    "node.unresolved_devices": count("unresolved_devices"),
    # clocks and delivery
    "sender.clock_skew": Case(
        {"clock_ahead_seconds": -6},
        {"clock_ahead_seconds": 5},
        {"clock_ahead_seconds": None},
        {"clock_ahead_seconds": -61},
    ),
    "sender.late_data": Case(
        {"data_delay_seconds": 61, "interval_seconds": 30}, {"data_delay_seconds": 60}, {"data_delay_seconds": None}
    ),
    "sender.gap": count("missing_batches"),
    "sender.dropping": recent("dropped_batches"),
    "sender.backlog": count("oldest_queued_seconds", 901, 900),
    "sender.backfilled": count("backfilled_seconds", 300, 0),
    # GPU faults
    "node.gpu_stack_broken": count("driver_works", 0, 1),
    "node.fabric_down": Case(
        {"nvswitch_links": 144, "fabric_manager_runs": 0}, {"nvswitch_links": 0}, {"fabric_manager_runs": None}
    ),
    "gpu.reset_required": flag("reset_required"),
    "gpu.hung": flag("hung"),
    "gpu.unreadable": flag("unreadable"),
    "gpu.recovery_action": flag("recovery_needed"),
    "gpu.ecc_uncorrected": count("uncorrected_errors"),
    "gpu.row_remap_failed": flag("row_remap_failed"),
    "gpu.row_remap_pending": flag("row_remap_pending"),
    "gpu.repair_pending": flag("repair_pending"),
    "gpu.unrepairable_memory": flag("unrepairable_memory"),
    "gpu.retired_pages": count("retired_pages", 10, 9),
    "gpu.nvlink_down": Case(
        {"nvlinks_active": 17, "nvlinks_of_peers": 18},
        {"nvlinks_active": 18, "nvlinks_day_before": 18},
        {"nvlinks_active": None},
    ),
    "gpu.fabric_unhealthy": flag("fabric_unhealthy"),
    "gpu.pcie_degraded": Case({"pcie_width": 8, "pcie_width_max": 16}, {"pcie_width": 16}, {"pcie_width": None}),
    "gpu.throttled": Case(
        {"slowdown_starts": 6, "hardware_slowdown": 0},
        {"slowdown_starts": 5},
        {"slowdown_starts": None, "hardware_slowdown": None},
    ),
    # XIDs
    "gpu.xid.reset": count("xids_reset"),
    "gpu.xid.repair": count("xids_repair"),
    "gpu.xid.investigate": count("xids_investigate"),
    "gpu.xid.software": count("xids_update_software"),
    "gpu.xid.unclassified": count("xids_unknown"),
    "gpu.xid.application": Case(
        {"xids_restart_app": 1, "xids_most_repeated": 1},
        {"xids_restart_app": 0},
        {"xids_restart_app": None},
        {"xids_most_repeated": 2},
    ),
    "node.repeat_offender": count("fatal_xids", 5, 4),
    "node.xid_blind": Case(
        {"xids_watched": 0, "lost_log_messages": 0},
        {"xids_watched": 1},
        {"xids_watched": None, "lost_log_messages": None},
    ),
    # drift
    "node.driver_drift": flag("driver_differs"),
    "gpu.vbios_drift": flag("vbios_differs"),
    "gpu.mig_layout_drift": flag("mig_layout_differs"),
    "gpu.mig_mode_pending": flag("mig_mode_pending"),
}


def verdicts_of(rule_id: str, subjects: Mapping[str, Facts]) -> RuleVerdicts:
    """Judge subjects, each with the inputs of its name, by one rule."""
    rule = RULES_BY_ID[rule_id]
    names = {name for facts in subjects.values() for name in facts}
    columns = {name: [facts.get(name) for facts in subjects.values()] for name in names}
    facts = FleetFacts.of(FactTable(rule.scope, tuple(subjects), columns))
    return judge(facts, [rule], Thresholds([rule]), 0).verdicts[rule_id]


def verdict_of(rule_id: str, facts: Facts) -> RuleVerdict:
    return verdicts_of(rule_id, {"subject": facts}).verdict("subject")


def test_each_rule_has_a_case() -> None:
    assert set(CASES) == set(RULES_BY_ID)
    assert len(RULES) == len(RULES_BY_ID)


@pytest.mark.parametrize("rule_id", CASES)
def test_rule_fires_is_healthy_and_is_unknown(rule_id: str) -> None:
    case = CASES[rule_id]
    subjects = {
        "fires": case.fires,
        "healthy": {**case.fires, **case.healthy},
        "unknown": {**case.fires, **case.unknown},
        "without facts": {},
    }
    verdicts = verdicts_of(rule_id, subjects)
    found = {key: str(verdicts.verdict(key)) for key in subjects}
    assert found == {"fires": "firing", "healthy": "healthy", "unknown": "unknown", "without facts": "unknown"}
    assert not verdicts.escalated.any()
    assert set(verdicts.evidence(0)) == {name for name, value in case.fires.items() if value is not None}


@pytest.mark.parametrize("rule_id", [rule.id for rule in RULES if rule.escalation is not None])
def test_rule_escalates(rule_id: str) -> None:
    case = CASES[rule_id]
    assert case.escalates is not None
    assert verdicts_of(rule_id, {"worse": {**case.fires, **case.escalates}}).escalated.tolist() == [True]


def test_working_fleet_is_healthy_by_every_rule() -> None:
    tables = [
        FactTable(scope, (scope,), {name: [WORKING.get(name, 0)] for name in INPUTS[scope]}) for scope in RuleScope
    ]
    verdicts = judge(FleetFacts.of(*tables), RULES, Thresholds(RULES), 0).verdicts
    found = {rule.id: verdicts[rule.id].verdict(rule.scope) for rule in RULES}
    assert {rule_id: verdict for rule_id, verdict in found.items() if verdict is not RuleVerdict.HEALTHY} == {}


def test_rule_ids_start_with_their_scope() -> None:
    assert [rule.id for rule in RULES if not rule.id.startswith(ID_PREFIX[rule.scope] + ".")] == []


def test_every_input_is_described_and_used() -> None:
    used = {(rule.scope, name) for rule in RULES for name in (*rule.inputs, *rule.texts)}
    assert used == {(scope, name) for table in (INPUTS, TEXTS) for scope, row in table.items() for name in row}


def test_reference_page_has_every_rule_and_threshold() -> None:
    page = render_findings_reference(simulations(), outage_times())
    assert [rule.id for rule in RULES if f"### {rule.id}\n" not in page] == []
    assert [one.name for rule in RULES for one in rule.thresholds if f"- `{one.name}`, by default" not in page] == []


@pytest.mark.parametrize(
    ("rule_id", "facts", "verdict"),
    [
        # bound to vfio-pci: not expected of the driver
        ("node.gpu_count_mismatch", {"pci_gpus": 8, "passthrough_gpus": 2, "nvml_gpus": 6}, "healthy"),
        ("node.gpu_count_mismatch", {"pci_gpus": 8, "passthrough_gpus": 2, "nvml_gpus": 8}, "firing"),
        # a lost GPU has a finding of its own
        ("node.gpu_count_mismatch", {"pci_gpus": 8, "nvml_gpus": 7, "lost_gpus": 1}, "healthy"),
        # an exporter that is read once in five minutes
        ("node.gpus_stale", {"gpu_value_seconds": 900, "gpu_interval_seconds": 300}, "healthy"),
        ("node.gpus_stale", {"gpu_value_seconds": 901, "gpu_interval_seconds": 300}, "firing"),
        # an agent reports the machine, whatever is allocated
        ("node.hidden_when_idle", {"imported": 0}, "healthy"),
        # unhealthy for the device plugin
        ("node.gpu_count_mismatch", {"kubernetes_gpus": 8, "allocatable_gpus": 7}, "firing"),
        ("gpu.frozen", {"noisy_readings": 5, "identical_cycles": 29}, "healthy"),
        ("gpu.frozen", {"noisy_readings": 5, "identical_cycles": 30}, "firing"),
        ("gpu.frozen", {"noisy_readings": 4, "identical_cycles": 30}, "healthy"),
        ("gpu.unit_mismatch", {"reader_ratio": 2.0**20}, "firing"),
        ("gpu.unit_mismatch", {"reader_ratio": 300}, "healthy"),
        ("gpu.impossible_value", {"power_watts": 1100, "power_limit_watts": 700}, "firing"),
        ("gpu.impossible_value", {"sm_clock_hertz": 2.0e9, "sm_clock_max_hertz": 1.98e9}, "healthy"),
        # nothing is expected of a free GPU, whatever else is missing
        ("gpu.allocated_idle", {"held": 0}, "healthy"),
        ("gpu.allocated_idle", {**HELD, "held_seconds": 60}, "healthy"),
        ("gpu.used_unallocated", {"held": 0, "memory_used_bytes": 2.0**31}, "firing"),
        ("gpu.used_unallocated", {"held": 0}, "unknown"),
        # no bridge on this board; and all links of a board were lost since yesterday
        ("gpu.nvlink_down", {"nvlinks_active": 0, "nvlinks_of_peers": 4, "nvlinks_day_before": 0}, "healthy"),
        ("gpu.nvlink_down", {"nvlinks_active": 0, "nvlinks_day_before": 4}, "firing"),
        ("gpu.nvlink_down", {"nvlinks_active": 0, "nvlinks_of_peers": 4}, "unknown"),
        ("gpu.nvlink_down", {"nvlinks_active": 4, "nvlinks_of_peers": 4}, "unknown"),
        ("gpu.nvlink_down", {"nvlinks_active": 3, "nvlinks_of_peers": 4}, "firing"),
        # an idle link saves power
        ("gpu.pcie_degraded", {"pcie_generation": 1, "pcie_generation_max": 5, "utilization_ratio": 0}, "healthy"),
        ("gpu.pcie_degraded", {"pcie_generation": 1, "pcie_generation_max": 5, "utilization_ratio": 1}, "firing"),
        ("gpu.throttled", {"temperature_margin_celsius": -3, "slowdown_margin_celsius": -2}, "firing"),
        ("node.fabric_down", {"nvswitch_links": 0}, "healthy"),
        ("hub.network", {"jointly_late_clusters": 2, "clusters": 2}, "healthy"),
    ],
)
def test_verdict_at_edges(rule_id: str, facts: Facts, verdict: str) -> None:
    assert verdict_of(rule_id, facts) == verdict


def test_threshold_is_configurable() -> None:
    rule = RULES_BY_ID["node.missing"]
    table = FactTable(rule.scope, ("m",), {"unseen_seconds": [100], "interval_seconds": [30]})
    thresholds = Thresholds([rule], {"node.missing": {"intervals": 4, "pending_seconds": 10}})
    verdicts = judge(FleetFacts.of(table), [rule], thresholds, 0).verdicts[rule.id]
    assert verdicts.verdict("m") is RuleVerdict.HEALTHY
    assert thresholds.of(rule)["pending_seconds"] == 10


@pytest.mark.parametrize(
    "configured",
    [
        {"node.unknown": {"intervals": 4.0}},
        {"node.missing": {"interval": 4.0}},
        {"node.missing": {"intervals": -1.0}},
        {"node.missing": {"intervals": float("nan")}},
    ],
)
def test_wrong_threshold_is_rejected(configured: dict[str, dict[str, float]]) -> None:
    with pytest.raises(ConfigError) as error:
        Thresholds(RULES, configured, "hub.toml")
    assert error.value.source == "hub.toml"
    assert error.value.key.startswith('findings.rules."node.')


def test_xids_are_counted_by_action() -> None:
    facts = XidFacts({0: {31: 2, 79: 1}, 1: {9999: 1, 63: 1}, 2: {}}, [True, True, True, False])
    found = {name: column.tolist() for name, column in facts.columns.items()}
    assert found["xids_restart_app"][:3] == [2, 0, 0]
    assert found["xids_most_repeated"][:3] == [2, 0, 0]
    assert found["xids_reset"][:3] == [1, 0, 0]
    assert found["xids_unknown"][:3] == [0, 1, 0]
    assert facts.fatal.tolist()[:3] == [1, 0, 0]
    assert all(np.isnan(column[3]) for column in (*facts.columns.values(), facts.fatal))
    assert facts.codes == ["31 x2, 79", "63, 9999", None, None]
    table = FactTable(RuleScope.DEVICE, ("a", "b", "c", "d"), facts.columns, texts={"xid_codes": facts.codes})
    verdicts = judge(FleetFacts.of(table), RULES, Thresholds(RULES), 0).verdicts
    assert verdicts["gpu.xid.unclassified"].evidence(1)["xid_codes"] == "63, 9999"
    assert verdicts["gpu.xid.reset"].verdict("d") is RuleVerdict.UNKNOWN


def test_every_action_of_an_xid_has_a_column_or_is_recorded_only() -> None:
    assert set(COLUMN_OF_ACTION) == set(XidAction)
    assert set(COLUMN_OF_ACTION.values()) - {None} <= set(INPUTS[RuleScope.DEVICE])
    fires = {row.code for row in XIDS.values() if COLUMN_OF_ACTION[row.action] is not None}
    assert fires >= {13, 31, 46, 48, 62, 64, 74, 79, 94, 95, 119, 120, 140, 154}
    assert not fires & {43, 63, 92, 121, 137, 141, 157, 160, 161}


def test_class_maximum_never_falls() -> None:
    maxima, column = class_maxima({"h100": 8}, ["h100", "l40", None, "a100"], np.array([7, 4, 2, np.nan]))
    assert maxima == {"h100": 8, "l40": 4}
    assert column.tolist()[:2] == [8, 4]
    assert np.isnan(column[2:]).all()


def test_member_differs_from_the_majority_of_its_pool() -> None:
    pools = ["a", "a", "a", "b", "b", None, "a"]
    values = ["1", "1", "2", "1", "2", "1", None]
    found = differs_from_pool(pools, values)
    assert found[:5].tolist() == [0, 0, 1, 0, 0]
    assert np.isnan(found[5:]).all()


def test_severity_of_a_rule_rises_by_escalation() -> None:
    order = [Severity.INFO, Severity.WARNING, Severity.CRITICAL]
    escalating = [rule for rule in RULES if rule.escalation is not None or rule.escalation_seconds]
    assert [rule.id for rule in escalating if order.index(rule.escalated_severity) <= order.index(rule.severity)] == []
