"""Faults that the matrix of rules does not have: restarts of the hub, combinations, renamed nodes."""

from pathlib import Path

import msgspec
import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.finding import FindingState
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.findings import TransitionKind
from gpufleet.model.wire.batch import MachineReport
from tests.hub.findings.evaluated_hub import EvaluatedHub
from tests.hub.findings.faulty_hub import CLUSTER, LOG_BYTES, POWER, Collector, FaultyHub
from tests.hub.findings.played_fleet import Play
from tests.hub.liveness.fake_clock_hub import Node


@pytest.mark.parametrize(
    ("faults", "size", "rules"),
    [
        ("zero-utilization@+3m/60m:c1", (1, 8, 4), {"cluster.zero_anomaly"}),
        ("lost-batches=5@+3m:c1/n1", (1, 2, 2), {"sender.dropping"}),
    ],
)
async def test_restart_of_the_hub_closes_nothing(
    faults: str, size: tuple[int, int, int], rules: set[str], tmp_path: Path
) -> None:
    play = Play(tmp_path, faults, size)
    play.register()
    try:
        for _ in range(6):
            await play.pass_minute()
        assert rules <= play.hub.open_rules
        play.hub.restart_after(20)
        for _ in range(6):
            await play.pass_minute()
        assert rules <= play.hub.open_rules
        assert len(play.hub.transitions(*rules)) == 1
    finally:
        play.hub.end()


async def test_restart_keeps_the_learned_number_of_gpus(tmp_path: Path) -> None:
    """The machine is the only one of its class."""
    play = Play(tmp_path, "gpu-removed@+3m/60m:c1/n1/g1", (1, 1, 2))
    try:
        for _ in range(7):
            await play.pass_minute()
        play.hub.restart_after(20)
        for _ in range(6):
            await play.pass_minute()
        (found,) = [one for (rule, _), one in play.hub.open_findings.items() if rule == "node.below_class_max"]
        assert found.evidence.items() >= {"nvml_gpus": "1", "class_gpus": "2"}.items()
        play.hub.relearn_classes = (found.evidence["machine_class"],)
        play.hub.restart_after(20)
        for _ in range(4):
            await play.pass_minute()
        assert "node.below_class_max" not in play.hub.open_rules
    finally:
        play.hub.end()


async def test_restart_keeps_a_finding_about_links_that_all_gpus_lost(tmp_path: Path) -> None:
    """After the restart, the peers of the GPU have as few links, and the day before is not known."""
    play = Play(tmp_path, "nvlink-down@+2m/3h:c1/n1/g0,nvlink-down@+12m/3h:c1/n1/g1", (1, 1, 2))
    try:
        for _ in range(10):
            await play.pass_minute()
        assert "gpu.nvlink_down" in play.hub.open_rules
        play.hub.restart_after(20)
        for _ in range(10):
            await play.pass_minute()
        assert play.hub.transitions("gpu.nvlink_down") == [TransitionKind.OPENED]
    finally:
        play.hub.end()


async def test_finding_about_repaired_links_closes_soon_after_a_restart(tmp_path: Path) -> None:
    """Both GPUs lost links; after the restart, the finding has the number of links that each had before."""
    play = Play(tmp_path, "nvlink-down@+2m/20m:c1/n1/g0,nvlink-down@+12m/10m:c1/n1/g1", (1, 1, 2))
    try:
        for _ in range(10):
            await play.pass_minute()
        play.hub.restart_after(20)
        while play.minute < 22:
            await play.pass_minute()
        assert "gpu.nvlink_down" in play.hub.open_rules
        for _ in range(5):
            await play.pass_minute()
        assert play.hub.transitions("gpu.nvlink_down") == [TransitionKind.OPENED, TransitionKind.CLOSED]
    finally:
        play.hub.end()


async def test_finding_about_a_missing_reading_outlasts_a_restart(tmp_path: Path) -> None:
    play = Play(tmp_path, "reading-dropped@+2m/90m:c1/n1/g1", (1, 1, 2))
    try:
        for _ in range(8):
            await play.pass_minute()
        play.hub.restart_after(20)
        while play.minute < 91:
            await play.pass_minute()
        (found,) = [one for (rule, _), one in play.hub.open_findings.items() if rule == "gpu.metrics_missing"]
        assert found.state is FindingState.OPEN
        assert found.evidence["missing_readings"] == "gpu_power_watts"
        for _ in range(5):
            await play.pass_minute()
        assert play.hub.transitions("gpu.metrics_missing") == [TransitionKind.OPENED, TransitionKind.CLOSED]
    finally:
        play.hub.end()


async def test_metric_that_an_exporter_drops_is_a_finding(tmp_path: Path) -> None:
    """Prometheus sends the temperature of the GPUs of the first node, until its exporter has it no longer."""
    hub = FaultyHub(tmp_path, LOG_BYTES)
    hub.metrics = (POWER, "DCGM_FI_DEV_GPU_TEMP")
    try:
        for _ in range(5):
            assert await hub.pass_minute() == set()
        hub.metrics = (POWER,)
        for _ in range(8):
            await hub.pass_minute()
        evidence = [one.evidence["missing_readings"] for one in hub.open_findings.values()]
        assert evidence == ["gpu_temperature_celsius"] * 2
        hub.metrics = (POWER, "DCGM_FI_DEV_GPU_TEMP")
        for _ in range(4):
            await hub.pass_minute()
        assert hub.open_rules == set()
    finally:
        hub.end()


async def test_clock_far_ahead_is_the_cause_of_stale_gpus(tmp_path: Path) -> None:
    play = Play(tmp_path, "clock-step=3600@+1m/9m:c1/n1", (1, 2, 2))
    play.register()
    try:
        for _ in range(16):
            await play.pass_minute()
    finally:
        play.hub.end()
    assert play.opened.keys() == {"sender.clock_skew", "cluster.partial"}
    assert play.opened["sender.clock_skew"] == 4


async def test_replaced_gpu_is_not_missing(tmp_path: Path) -> None:
    play = Play(tmp_path, "gpu-replaced@+1m:c1/n1/g1", (1, 2, 2))
    try:
        for _ in range(10):
            await play.pass_minute()
    finally:
        play.hub.end()
    assert play.opened.keys() == {"gpu.replaced"}


class LossyNode(Node):
    """A node whose first GPU was lost before the agent's start: while it is lost, only its PCI address is known."""

    is_lost = True

    def _report(self, samples: tuple[Sample, ...]) -> MachineReport:
        first = samples[0]
        if self.is_lost and first.view is not None:
            view = msgspec.structs.replace(first.view, uuid=None)
            first = msgspec.structs.replace(first, view=view, values={"gpu_state": "lost"})
        return super()._report((first, *samples[1:]))


async def test_gpu_that_recovers_under_its_uuid_is_not_missing(tmp_path: Path) -> None:
    hub, node = EvaluatedHub(tmp_path), LossyNode("a")
    try:
        await hub.run(180, [node])
        assert "gpu.lost" in hub.open_rules
        node.is_lost = False
        await hub.run(480, [node])
        assert not hub.open_rules & {"gpu.lost", "cluster.partial"}
    finally:
        hub.end()


async def test_agent_under_a_new_name_is_no_duplicate(tmp_path: Path) -> None:
    hub = FaultyHub(tmp_path, LOG_BYTES)
    try:
        for _ in range(3):
            await hub.pass_minute()
        one = hub.nodes[1]
        one.machine = msgspec.structs.replace(one.machine, name="renamed")
        one.name, one.epoch, one.seq = "renamed", "f" * 32, 0
        for _ in range(8):
            assert await hub.pass_minute() == set()
    finally:
        hub.end()


async def test_rebuilt_kubernetes_cluster_is_no_conflict(tmp_path: Path) -> None:
    """The new cluster has another UID of kube-system from one minute to the next."""
    hub = FaultyHub(tmp_path, LOG_BYTES)
    first, second = Collector("before", CLUSTER), Collector("after", CLUSTER)
    hub.nodes.append(first)
    try:
        for _ in range(4):
            assert await hub.pass_minute() == set()
        hub.nodes[-1] = second
        for _ in range(12):
            assert await hub.pass_minute() == set()
    finally:
        hub.end()


async def test_restart_of_the_hub_keeps_a_conflict_of_kubernetes_clusters(tmp_path: Path) -> None:
    hub = FaultyHub(tmp_path, LOG_BYTES)
    hub.nodes += [Collector("a", CLUSTER), Collector("b", CLUSTER)]
    try:
        for _ in range(8):
            await hub.pass_minute()
        assert hub.open_findings["cluster.identity_conflict", CLUSTER].evidence == {"kubernetes_uids": "2"}
        hub.restart_after(600)
        for _ in range(8):
            await hub.pass_minute()
        assert hub.transitions("cluster.identity_conflict") == [TransitionKind.OPENED]
    finally:
        hub.end()


class LoadedNode(Node):
    """A node whose GPUs have a utilisation."""

    utilization = 0.0

    def _values(self) -> dict[str, Value | Absent]:
        return {**super()._values(), "gpu_utilization_ratio": self.utilization}


@pytest.mark.parametrize("stops", [True, False])
async def test_busy_node_that_stops_is_no_drop_to_zero(stops: bool, tmp_path: Path) -> None:
    hub = FaultyHub(tmp_path, LOG_BYTES)
    busy, idle = (LoadedNode(name, first_gpu=first) for name, first in (("node-0", 0), ("node-1", 2)))
    hub.metrics, hub.nodes, busy.utilization = (), [busy, idle], 0.9
    try:
        for _ in range(3):
            await hub.pass_minute()
        busy.utilization = 0.0
        hub.nodes = [idle] if stops else [busy, idle]
        for _ in range(5):
            await hub.pass_minute()
        assert ("node.missing" in hub.open_rules, "cluster.zero_anomaly" in hub.open_rules) == (stops, not stops)
    finally:
        hub.end()


async def test_slowdown_without_its_reading_is_unknown(tmp_path: Path) -> None:
    class SlowNode(Node):
        mask: Value | Absent = 0x40

        def _values(self) -> dict[str, Value | Absent]:
            return {**super()._values(), "gpu_clock_event_reasons_mask": self.mask}

    hub, node = FaultyHub(tmp_path, LOG_BYTES), SlowNode("node-0", gpus=1)
    hub.metrics, hub.nodes = (), [node]
    states = []
    try:
        for mask in (0x40, Absent(Reason.TIMEOUT), 0):
            node.mask = mask
            for _ in range(14):
                await hub.pass_minute()
            states.append([one.state for (rule, _), one in hub.open_findings.items() if rule == "gpu.throttled"])
    finally:
        hub.end()
    assert states == [[FindingState.OPEN], [FindingState.UNKNOWN], []]
