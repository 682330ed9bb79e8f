"""Deleted Kubernetes nodes: their late machines are retired, others are not, and each can return."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.findings import deleted_nodes
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from gpufleet.model.kubernetes import ClusterNode, CopyState, CopyStatus
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.findings import TransitionKind
from gpufleet.model.stored.kubernetes import ObjectKind
from gpufleet.model.wire.batch import Batch, ClusterPart, RemovedObject
from tests.fakes.clock import FakeClock
from tests.hub.findings.evaluated_hub import EvaluatedHub
from tests.hub.liveness.fake_clock_hub import INTERVAL, Node

OPENED, CLOSED = TransitionKind.OPENED, TransitionKind.CLOSED
RETIRED, MISSING = "node.retired", "node.missing"


class NodeCollector(Node):
    """A cluster collector that reports Node objects.

    Attributes:
        nodes: present nodes.
        removed: UIDs of nodes whose end it reports.
        state: state of its copy of the nodes.
    """

    def __init__(self, cluster: str = "local", *nodes: ClusterNode) -> None:
        super().__init__("collector", cluster)
        self.nodes, self.removed, self.state = list(nodes), list[str](), CopyState.SYNCED
        self.stale_at = 0

    def delete(self, uid: str) -> None:
        """Delete a node."""
        self.nodes = [one for one in self.nodes if one.uid != uid]
        self.removed.append(uid)

    def body(self, clock: FakeClock, *, at: int | None = None, seq: int | None = None) -> bytes:
        """Return the next batch."""
        self.seq += 1
        at = self.now(clock)
        copy = CopyStatus(resource=ObjectKind.NODE.value, state=self.state, since=self.stale_at or at)
        ends = [RemovedObject(resource=ObjectKind.NODE.value, uid=uid, at=at) for uid in self.removed]
        self.removed = []
        return encode(
            Batch(
                cluster=self.cluster,
                sender=self.name,
                epoch=self.epoch,
                seq=self.seq,
                sent_at=at,
                heartbeat=Heartbeat(interval_seconds=INTERVAL, version="1", started_at=1),
                cluster_part=ClusterPart(
                    observed_at=at, system_uid=f"uid-{self.cluster}", copies=[copy], nodes=self.nodes, removed=ends
                ),
            )
        )


def kubernetes_node(machine: Node, uid: str = "") -> ClusterNode:
    """Return the Node object of a machine."""
    return ClusterNode(uid=uid or f"uid-{machine.name}", name=machine.name, machine_id=machine.machine.machine_id or "")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[EvaluatedHub]:
    thresholds = Thresholds(RULES, {RETIRED: {"shown_seconds": 900}})
    hub = EvaluatedHub(tmp_path, "local", "other", thresholds=thresholds)
    yield hub
    hub.end()


@pytest.fixture
def machines() -> list[Node]:
    found = [Node(f"node-{number}", first_gpu=2 * number) for number in range(3)]
    for one in found:
        one.sends_inventory = True
    return found


@pytest.fixture
def collector(machines: list[Node]) -> NodeCollector:
    return NodeCollector("local", *map(kubernetes_node, machines))


async def test_late_machine_of_a_deleted_node_is_retired(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector
) -> None:
    await hub.run(180, [*machines, collector])
    before = hub.store.known_gpus(())["local"].pci
    collector.delete("uid-node-2")
    await hub.run(600, [*machines[:2], collector])
    (machine,) = hub.registry.find_machines("local", "node-2")
    assert machine.is_retired
    assert set(hub.open_findings) == {(RETIRED, f"local/{machine.id}")}
    assert hub.transitions(MISSING) == hub.transitions("cluster.partial") == []
    assert (before, hub.store.known_gpus((machine.id,))["local"].pci) == (6, 4)
    await hub.run(600, [*machines[:2], collector])
    assert hub.open_rules == set()
    assert hub.transitions(RETIRED) == [OPENED, CLOSED]


async def test_missing_machine_is_retired_when_its_node_is_deleted(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector
) -> None:
    await hub.run(180, [*machines, collector])
    await hub.run(300, [*machines[:2], collector])
    assert MISSING in hub.open_rules
    collector.delete("uid-node-2")
    await hub.run(180, [*machines[:2], collector])
    assert hub.open_rules == {RETIRED}
    assert hub.transitions(MISSING) == [OPENED, CLOSED]


async def test_retirement_outlasts_a_restart_and_ends_with_a_report(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector
) -> None:
    await hub.run(180, [*machines, collector])
    collector.delete("uid-node-2")
    await hub.run(300, [*machines[:2], collector])
    hub.restart_after(20)
    await hub.run(300, [*machines[:2], collector])
    assert hub.open_rules == {RETIRED}
    collector.nodes.append(kubernetes_node(machines[2], "uid-new"))
    await hub.run(300, [*machines, collector])
    assert hub.open_rules == set()
    assert hub.transitions(RETIRED) == [OPENED, CLOSED]
    assert not hub.registry.find_machines("local", "node-2")[0].is_retired


async def test_machine_whose_node_is_created_again_is_expected(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector
) -> None:
    await hub.run(180, [*machines, collector])
    collector.delete("uid-node-2")
    await hub.run(300, [*machines[:2], collector])
    collector.nodes.append(kubernetes_node(machines[2], "uid-new"))
    await hub.run(300, [*machines[:2], collector])
    assert MISSING in hub.open_rules
    assert RETIRED not in hub.open_rules


async def test_reporting_machine_of_a_deleted_node_is_not_retired(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_nodes, "AFTER_SECONDS", 300.0)
    await hub.run(180, [*machines, collector])
    collector.delete("uid-node-2")
    await hub.run(420, [*machines, collector])
    assert hub.open_rules == set()
    await hub.run(300, [*machines[:2], collector])
    assert hub.open_rules == {MISSING}, "it was used long after the deletion"


async def test_allocated_machine_is_retired_when_its_allocation_ends(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector
) -> None:
    await hub.run(180, [*machines, collector])
    target = Target(cluster="local", machine="node-2")
    spec = AllocationSpec(kind=AllocationKind.BARE_METAL, target=target, tenant="red", expected={"any": 2})
    await hub.allocations.put("red", spec)
    collector.delete("uid-node-2")
    await hub.run(240, [*machines[:2], collector])
    assert hub.open_rules == {MISSING}
    await hub.allocations.close("red")
    await hub.run(180, [*machines[:2], collector])
    assert hub.open_rules == {RETIRED}


async def test_collector_without_a_current_copy_retires_nothing(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector
) -> None:
    """It restarts or loses the API server: nodes are missing in its reports, without an end."""
    await hub.run(180, [*machines, collector])
    collector.nodes, collector.stale_at = [], hub.clock.now_ns()
    for collector.state in (CopyState.STALE, CopyState.FORBIDDEN, CopyState.STARTING):
        await hub.run(180, [*machines[:2], collector])
        assert MISSING in hub.open_rules
    await hub.run(300, machines[:2])
    assert hub.transitions(MISSING) == [OPENED]
    assert hub.transitions(RETIRED) == []


async def test_deletion_reported_by_another_cluster_does_nothing(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector
) -> None:
    """The other cluster claims nodes with the identity of the machines."""
    claimant = NodeCollector("other", *collector.nodes)
    await hub.run(180, [*machines, claimant])
    claimant.delete("uid-node-2")
    await hub.run(600, [*machines[:2], claimant])
    assert MISSING in hub.open_rules
    assert not any(one.is_retired for one in hub.registry.machines("local", after=None, limit=100))
    assert hub.transitions(RETIRED) == []


async def test_deleted_node_with_only_the_name_of_a_machine_does_nothing(
    hub: EvaluatedHub, machines: list[Node], collector: NodeCollector
) -> None:
    collector.nodes = [msgspec.structs.replace(one, machine_id="") for one in collector.nodes]
    await hub.run(180, [*machines, collector])
    collector.delete("uid-node-2")
    await hub.run(600, [*machines[:2], collector])
    assert MISSING in hub.open_rules
    assert hub.transitions(RETIRED) == []
