"""Faults of the simulated fleet by the rule about the fleet that each of them shows. Pure.

The faults are written as for `--faults`. `fleet_size` has the fleet that a rule needs. A fault lasts longer than its
rule needs to open a finding with the default thresholds. Instantaneous faults end by a boot of the node, or with the
window of the rule.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpufleet.fleet.rules.table import RULES_BY_ID
from gpufleet.simulate.fleet.faults import FAULTS, FaultKind, FaultRow, parse_faults
from gpufleet.simulate.fleet.hub_faults import HUB_FAULTS, HubFault

CLUSTERS, NODES, GPUS = 1, 8, 4
"""Size of the fleet that most rules need: its nodes have every role."""

_SIZES = {"hub.network": (4, 2, 2), "node.driver_drift": (1, 13, 2)}

NO_FAMILY = "restarts"
"""Heading of the faults that open no finding."""

_TRAINING, _INFERENCE, _MIG, _VM, _IDLE = "c1/n1", "c1/n3", "c1/n4", "c1/n5", "c1/n8"
"""Nodes by role; see `layout.PATTERN`."""

_BOOT = f"node-reboot@+12m/1m:{_TRAINING}"


def _each(fault: str, places: list[str]) -> str:
    return ",".join(f"{fault}:{place}" for place in places)


def _xid(code: int) -> str:
    return f"xid={code}@+2m:{_TRAINING}/g0,{_BOOT}"


_EVERY_NODE = [f"c1/n{node}" for node in range(1, NODES + 1)]

RULE_FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "hub.network": _each("cluster-off@+2m/4m", ["c1", "c2", "c3"]),
        "hub.clock_skew": _each("clock-step=30@+2m/10m", _EVERY_NODE),
        "cluster.stale": "cluster-off@+2m/10m:c1",
        "cluster.collector_broken": "collector-broken@+2m/10m:c1",
        "cluster.partial": "half-cluster@+2m/15m:c1",
        "cluster.attribution_gap": "attribution-gap@+5m/80m:c1",
        "cluster.zero_anomaly": "zero-utilization@+10m/4m:c1",
        "node.missing": f"node-off@+2m/5m:{_TRAINING}",
        "node.retired": f"node-deleted@+2m/10m:{_INFERENCE}",
        "node.inventory_unconfirmed": f"no-inventory@+2m/30m:{_TRAINING}",
        "node.gpus_stale": f"readers-broken@+2m/12m:{_TRAINING}",
        "node.gpu_count_mismatch": f"gpu-unallocatable@+2m/8m:{_INFERENCE}",
        "node.hidden_when_idle": f"hidden-when-idle@+5m/15m:{_INFERENCE}",
        "node.expected_unknown": f"no-pci@+0s/20m:{_TRAINING}",
        "node.below_class_max": f"gpu-removed@+5m/5m:{_TRAINING}/g1",
        "node.identity_conflict": f"cloned-machine@+2m/5m:{_TRAINING}",
        "node.duplicate_agent": f"duplicate-agent@+2m/8m:{_TRAINING}",
        "node.gpu_stack_broken": f"driver-broken@+2m/5m:{_TRAINING}",
        "node.fabric_down": f"fabric-manager-stopped@+2m/8m:{_TRAINING}",
        "node.unresolved_devices": f"unresolved-devices@+2m/15m:{_TRAINING}",
        "node.repeat_offender": ",".join(f"xid=119@+{at}m:{_TRAINING}/g0" for at in range(2, 7)) + f",{_BOOT}",
        "node.xid_blind": f"xid-blind@+2m/15m:{_TRAINING}",
        "node.driver_drift": "driver-drift@+2m/26h:c1/n10",
        "sender.identity_conflict": ",".join(f"cloned-spool@+{at}m/2m:{_TRAINING}" for at in (2, 6, 10)),
        "sender.clock_skew": f"clock-step=30@+2m/8m:{_TRAINING}",
        "sender.late_data": f"late-data=90@+2m/12m:{_TRAINING}",
        "sender.gap": f"delayed-batches=5@+2m/12m:{_TRAINING}",
        "sender.dropping": f"lost-batches=5@+2m:{_TRAINING}",
        "sender.backlog": f"stuck-batches=5@+2m/25m:{_TRAINING}",
        "sender.backfilled": f"backfill@+2m/10m:{_TRAINING}",
        "gpu.lost": f"gpu-lost@+2m/4m:{_TRAINING}/g1",
        "gpu.hung": f"gpu-hung@+2m/5m:{_TRAINING}/g1",
        "gpu.reset_required": f"reset-required@+2m/4m:{_TRAINING}/g1",
        "gpu.unreadable": f"gpu-unreadable@+2m/15m:{_TRAINING}/g1",
        "gpu.metrics_missing": f"core-failed@+2m/8m:{_TRAINING}/g1",
        "gpu.recovery_action": f"recovery-action@+2m/10m:{_TRAINING}/g1",
        "gpu.duplicate_uuid": f"duplicate-gpu@+2m/8m:{_TRAINING}/g1",
        "gpu.replaced": f"gpu-replaced@+2m:{_TRAINING}/g1",
        "gpu.holder_conflict": f"holder-conflict@+2m/8m:{_INFERENCE}/g0",
        "gpu.frozen": f"frozen-values@+2m/20m:{_INFERENCE}/g0",
        "gpu.counter_frozen": f"frozen-energy@+2m/8m:{_INFERENCE}/g0",
        "gpu.counter_reset": f"counter-reset@+2m/8m:{_INFERENCE}/g0",
        "gpu.invalid_value": f"invalid-value@+2m/8m:{_INFERENCE}/g0",
        "gpu.impossible_value": f"clock-above-maximum@+2m/8m:{_INFERENCE}/g0",
        "gpu.unit_mismatch": f"unit-mismatch@+2m/8m:{_INFERENCE}/g0",
        "gpu.source_mismatch": f"host-values@+2m/8m:{_VM}/g0",
        "gpu.utilization_missing_at_power": f"no-utilization@+2m/10m:{_INFERENCE}/g0",
        "gpu.allocated_idle": f"held-idle@+2m/60m:{_IDLE}/g0",
        "gpu.allocated_parked": f"held-parked@+2m/90m:{_IDLE}/g0",
        "gpu.used_unallocated": f"used-unheld@+2m/10m:{_IDLE}/g0",
        "gpu.busy_at_low_power": f"low-power@+2m/25m:{_INFERENCE}/g0",
        "gpu.ecc_uncorrected": f"ecc-error@+2m:{_TRAINING}/g0,{_BOOT}",
        "gpu.row_remap_failed": f"row-remap-failed@+2m/8m:{_TRAINING}/g0",
        "gpu.row_remap_pending": f"row-remap-pending@+2m/8m:{_TRAINING}/g0",
        "gpu.repair_pending": f"repair-pending@+2m/8m:{_TRAINING}/g0",
        "gpu.unrepairable_memory": f"unrepairable-memory@+2m/8m:{_TRAINING}/g0",
        "gpu.retired_pages": f"retired-pages@+2m/8m:{_TRAINING}/g0",
        "gpu.nvlink_down": f"nvlink-down@+2m/10m:{_TRAINING}/g0",
        "gpu.fabric_unhealthy": f"fabric-unhealthy@+2m/10m:{_TRAINING}/g0",
        "gpu.pcie_degraded": f"pcie-degraded@+2m/15m:{_TRAINING}/g0",
        "gpu.throttled": f"hot-gpu=3@+2m/15m:{_TRAINING}/g0",
        "gpu.vbios_drift": f"vbios-drift@+2m/80m:{_TRAINING}/g0",
        "gpu.mig_layout_drift": f"mig-layout@+2m/100m:{_MIG}/g0",
        "gpu.mig_mode_pending": f"mig-mode-pending@+2m/80m:{_TRAINING}/g0",
        "gpu.xid.reset": _xid(119),
        "gpu.xid.repair": _xid(54),
        "gpu.xid.investigate": _xid(48),
        "gpu.xid.software": _xid(78),
        "gpu.xid.unclassified": _xid(167),
        "gpu.xid.application": _xid(31),
        "allocation.unavailable": f"guest-down@+2m/10m:{_VM}",
        "allocation.partial": f"gpu-removed@+0s/15m:{_TRAINING}/g1",
    }
)
"""Rule id to faults that open a finding of the rule.

The rules of the scope allocation need an allocation: of the first virtual machine of the node for
`allocation.unavailable`, and of the node with all its GPUs for `allocation.partial`.
"""

DETECTION_MINUTES: Mapping[str, int] = MappingProxyType(
    {
        "hub.network": 2,
        "hub.clock_skew": 3,
        "cluster.stale": 5,
        "cluster.collector_broken": 7,
        "cluster.partial": 7,
        "cluster.attribution_gap": 61,
        "cluster.zero_anomaly": 2,
        "node.missing": 3,
        "node.retired": 2,
        "node.inventory_unconfirmed": 20,
        "node.gpus_stale": 7,
        "node.gpu_count_mismatch": 3,
        "node.hidden_when_idle": 6,
        "node.expected_unknown": 11,
        "node.below_class_max": 5,
        "node.identity_conflict": 1,
        "node.duplicate_agent": 3,
        "node.gpu_stack_broken": 2,
        "node.fabric_down": 3,
        "node.unresolved_devices": 11,
        "node.repeat_offender": 5,
        "node.xid_blind": 11,
        "node.driver_drift": 1441,
        "sender.identity_conflict": 9,
        "sender.clock_skew": 3,
        "sender.late_data": 7,
        "sender.gap": 8,
        "sender.dropping": 1,
        "sender.backlog": 17,
        "sender.backfilled": 10,
        "gpu.lost": 1,
        "gpu.hung": 3,
        "gpu.reset_required": 2,
        "gpu.unreadable": 11,
        "gpu.metrics_missing": 4,
        "gpu.recovery_action": 6,
        "gpu.duplicate_uuid": 3,
        "gpu.replaced": 1,
        "gpu.holder_conflict": 3,
        "gpu.frozen": 11,
        "gpu.counter_frozen": 4,
        "gpu.counter_reset": 1,
        "gpu.invalid_value": 3,
        "gpu.impossible_value": 3,
        "gpu.unit_mismatch": 4,
        "gpu.source_mismatch": 3,
        "gpu.utilization_missing_at_power": 6,
        "gpu.allocated_idle": 45,
        "gpu.allocated_parked": 75,
        "gpu.used_unallocated": 6,
        "gpu.busy_at_low_power": 16,
        "gpu.ecc_uncorrected": 1,
        "gpu.row_remap_failed": 1,
        "gpu.row_remap_pending": 3,
        "gpu.repair_pending": 3,
        "gpu.unrepairable_memory": 1,
        "gpu.retired_pages": 1,
        "gpu.nvlink_down": 6,
        "gpu.fabric_unhealthy": 6,
        "gpu.pcie_degraded": 11,
        "gpu.throttled": 11,
        "gpu.vbios_drift": 61,
        "gpu.mig_layout_drift": 81,
        "gpu.mig_mode_pending": 61,
        "gpu.xid.reset": 1,
        "gpu.xid.repair": 1,
        "gpu.xid.investigate": 1,
        "gpu.xid.software": 1,
        "gpu.xid.unclassified": 1,
        "gpu.xid.application": 1,
        "allocation.unavailable": 7,
        "allocation.partial": 4,
    }
)
"""Rule id to the minutes from the beginning of its fault to the opening of the finding, with evaluations each minute.

Measured with agents that report every 30 s, by a test.
"""


class Outage(NamedTuple):
    """Kind of missing, partial or stale data: its fault, and the rule whose finding opens after `minutes`."""

    text: str
    fault: str
    rule: str
    minutes: int


OUTAGES = (
    Outage("agent that stops", "node-off@+1m/40m:c1/n1", "node.missing", 3),
    Outage("cluster without a connection to the hub", "backfill@+1m/40m:c2/n1", "cluster.stale", 5),
    Outage("GPU that hangs", "gpu-hung@+1m/40m:c1/n3/g0", "gpu.hung", 3),
    Outage("reader that no longer gives a core reading", "reading-dropped@+1m/40m:c1/n4/g0", "gpu.metrics_missing", 4),
    Outage("GPU that the driver no longer lists", "gpu-unlisted@+1m/40m:c1/n6/g0", "gpu.lost", 3),
    Outage("GPU that is no longer on the PCI bus", "gpu-removed@+1m/40m:c1/n7/g1", "node.below_class_max", 5),
    Outage("exporter that repeats old values of a busy GPU", "frozen-values@+1m/40m:c1/n2/g0", "gpu.frozen", 11),
    Outage("exporter that repeats old values of an idle GPU", "frozen-values@+1m/40m:c1/n8/g0", "gpu.frozen", 31),
)
"""Outages that the hub reports within minutes with every default. Measured by a test, with reports every 30 s.

The second cluster has one agent, which measures on but cannot reach the hub.
"""


def fleet_size(rule: str) -> tuple[int, int, int]:
    """Return the clusters, nodes per cluster and GPUs per node of the smallest fleet for the fault of a rule."""
    return _SIZES.get(rule, (CLUSTERS, NODES, GPUS))


def simulations() -> Mapping[str, str]:
    """Return the fault of each rule and the times of its finding, as Markdown list items without the dash."""
    shown = {
        rule: f"Simulated fault: `{fault}`. The finding opens {DETECTION_MINUTES[rule]} min after the fault."
        for rule, fault in RULE_FAULTS.items()
    }
    return {**shown, **{rule: _hub_fault_text(one) for rule, one in HUB_FAULTS.items()}}


def outage_times() -> list[tuple[str, str, int]]:
    """Return text, rule and minutes of each outage."""
    return [(one.text, one.rule, one.minutes) for one in OUTAGES]


def _hub_fault_text(fault: HubFault) -> str:
    others = ", ".join(f"`{rule}`" for rule in fault.others)
    also = f" The fault also opens {others}." if others else ""
    return (
        f"Fault on a test hub: {fault.text}. The finding opens {fault.opens} min after the fault, and closes "
        f"{fault.closes} min after its end.{also}"
    )


def expected_findings(text: str) -> frozenset[str]:
    """Return the rules whose findings faults can open, by the rows of their kinds.

    Args:
        text: faults as for `--faults`.

    Raises:
        FaultError: if a fault is malformed.
    """
    return frozenset(rule for fault in parse_faults(text, 0) for rule in FAULTS[fault.kind].findings)


def faults_by_family() -> Mapping[str, Mapping[FaultKind, FaultRow]]:
    """Return all faults by the family of the first rule whose finding they open, in the order of the table."""
    found: dict[str, dict[FaultKind, FaultRow]] = {}
    for kind, row in FAULTS.items():
        family = RULES_BY_ID[row.findings[0]].family.value if row.findings else NO_FAMILY
        found.setdefault(family, {})[kind] = row
    return found
