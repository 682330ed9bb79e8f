"""Rules and faults: each fault of the simulated fleet opens the finding of its rule in time, and no unexpected one.

The agents of the fault's nodes and of one more report to a hub on a fake clock; rules that compare nodes have all.
"""

from pathlib import Path

import pytest

from gpufleet.fleet.rules.rule import PENDING, Thresholds
from gpufleet.fleet.rules.table import RULES, RULES_BY_ID
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from gpufleet.model.machine import MachineKind
from gpufleet.simulate.fleet.random_values import uuid_of
from gpufleet.simulate.fleet.rule_faults import (
    DETECTION_MINUTES,
    GPUS,
    RULE_FAULTS,
    expected_findings,
    fleet_size,
)
from tests.hub.findings.played_fleet import MINUTE, Play

WITH_ALL_NODES = {
    *(rule for rule in RULE_FAULTS if rule.startswith(("hub.", "cluster."))),
    *("node.gpu_count_mismatch", "node.hidden_when_idle", "node.below_class_max", "node.retired"),
    *("node.driver_drift", "gpu.vbios_drift", "gpu.mig_layout_drift"),
}
"""Rules about many nodes, about a majority of them, or about what Kubernetes declares."""

SHORT_SECONDS = 600.0

SHORTENED = {
    rule: {PENDING: SHORT_SECONDS}
    for rule in ("cluster.attribution_gap", "node.driver_drift", "gpu.vbios_drift", "gpu.mig_layout_drift")
}
"""Times of firing that would take long to simulate with many nodes."""

CLOSING_LATER = {
    *("gpu.replaced", "gpu.nvlink_down", "node.driver_drift", "node.repeat_offender", "sender.identity_conflict"),
    *SHORTENED,
}
"""Rules whose finding closes hours later, most of them a day: the end is not simulated."""

MAX_MINUTES = 120


def saved_minutes(rule: str) -> float:
    """Return by how many minutes the finding of a rule opens earlier than by default."""
    return (RULES_BY_ID[rule].pending_seconds - SHORT_SECONDS) / 60 if rule in SHORTENED else 0


async def allocate(play: Play, rule: str) -> None:
    """Store the allocation that the fault of a rule needs, once its machine is known."""
    cluster, node = play.fleet.cluster_ids()[0], play.agents[0].node
    target, kind = Target(cluster=cluster, machine=node.name), AllocationKind.BARE_METAL
    if rule == "allocation.unavailable":
        every = play.hub.registry.machines(cluster, after=None, limit=100)
        guest = min(one.machine.name for one in every if one.machine.kind is MachineKind.GUEST)
        target, kind = Target(cluster=cluster, vm_uuid=uuid_of(guest)), AllocationKind.GPU_SLICE
    expected = {"any": GPUS if kind is AllocationKind.BARE_METAL else GPUS // 2}
    await play.hub.allocations.put("job", AllocationSpec(kind=kind, target=target, tenant="red", expected=expected))


@pytest.mark.parametrize("rule", DETECTION_MINUTES)
async def test_fault_opens_its_finding_in_time_and_no_other(rule: str, tmp_path: Path) -> None:
    play = Play(tmp_path, RULE_FAULTS[rule], fleet_size(rule), Thresholds(RULES, SHORTENED))
    if rule in WITH_ALL_NODES:
        play.register()
    else:
        play.keep_agents_of(play.faults)
    try:
        end = max(one.end for one in play.faults)
        while play.minute < MAX_MINUTES:
            if play.minute == 1 and rule.startswith("allocation."):
                await allocate(play, rule)
            is_open = rule in await play.pass_minute()
            if rule in play.opened and (rule in CLOSING_LATER or (not is_open and play.hub.clock.now_ns() > end)):
                break
        first = min(one.begin for one in play.faults)
        found = play.opened[rule] - (first - play.start) // MINUTE
        assert found == DETECTION_MINUTES[rule] - saved_minutes(rule)
        assert play.opened.keys() <= expected_findings(RULE_FAULTS[rule])
        assert play.minute < MAX_MINUTES, "the finding is still open"
    finally:
        play.hub.end()


async def test_fleet_without_faults_has_no_finding(tmp_path: Path) -> None:
    play = Play(tmp_path, "", (2, 8, 2))
    play.register()
    try:
        for _ in range(30):
            assert await play.pass_minute() == set()
    finally:
        play.hub.end()
