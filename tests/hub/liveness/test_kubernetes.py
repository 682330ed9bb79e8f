"""Machines named by Kubernetes: expected from then on, but live only once they report."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.catalogue import Lane
from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.model.liveness import ExpectedGpus, State
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Provenance, Sample
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import to_datetime
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.clock import FakeClock
from tests.hub.liveness.fake_clock_hub import INTERVAL, FakeClockHub, Node

READER = "remote_write/kube_state_metrics"


class Kubernetes(Node):
    """Importer of kube-state-metrics: GPUs by node, None where the series ended."""

    def __init__(self, **gpus: int | None) -> None:
        super().__init__("remote_write/prometheus")
        self.gpus_by_node = dict(gpus)
        self.evidence: dict[str, Machine] = {}  # a cluster collector has more than the name
        self.sends_heartbeat = False
        self.measured_at: int | None = None  # in an outage of the API server, numbers keep their time

    def body(self, clock: FakeClock, *, at: int | None = None, seq: int | None = None) -> bytes:
        self.seq += 1
        now = clock.now_ns()
        heartbeat = Heartbeat(interval_seconds=INTERVAL, version="1", started_at=1)
        reports = []
        for name, gpus in self.gpus_by_node.items():
            value = Absent(Reason.NO_DATA, "ended") if gpus is None else gpus
            dims = (DimValue("kubernetes_capacity_devices", ("nvidia_com_gpu",), value),)
            sample = Sample(
                view=None, reader=READER, lane=Lane.SLOW, measured_at=self.measured_at or now, values={}, dims=dims,
                provenance=Provenance.IMPORTED,
            )  # fmt: skip
            machine = self.evidence.get(name, Machine(name=name.replace("_", "-")))
            reports.append(MachineReport(machine=machine, samples=(sample,)))
        return encode(
            Batch(
                cluster=self.cluster, sender=self.name, epoch=self.epoch, seq=self.seq, sent_at=now,
                heartbeat=heartbeat if self.sends_heartbeat else None, reports=tuple(reports),
            )
        )  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeClockHub]:
    hub = FakeClockHub(tmp_path, "local")
    yield hub
    hub.end()


def machines(record: ClusterRecord | FleetAnswer) -> dict[State, int]:
    if isinstance(record, FleetAnswer):
        return record.machines
    assert record.freshness is not None
    return record.freshness.machines


def counts(record: ClusterRecord) -> tuple[str, ExpectedGpus]:
    assert record.coverage is not None
    return record.coverage.summary, record.coverage.sources


async def test_node_named_only_by_kubernetes_was_never_seen(hub: FakeClockHub) -> None:
    agents, kubernetes = [Node("node-0"), Node("node-1")], Kubernetes(node_0=2, node_1=2, node_2=2)
    await hub.advance(2 * INTERVAL, [*agents, kubernetes])
    record = await hub.cluster()
    assert counts(record) == ("4 of 6 expected by kubernetes", ExpectedGpus(nvml=4, kubernetes=6))
    assert machines(record) == {State.LIVE: 2, State.NEVER_SEEN: 1}
    assert record.freshness is not None
    assert record.freshness.liveness.partial == (
        "1 of 3 machines are not live",
        "GPUs reporting: 4 of 6 expected by kubernetes",
    )
    assert record.coverage is not None
    (source,) = record.coverage.kubernetes
    assert (source.reader, source.machines, source.gpus, source.counted, source.allocatable) == (READER, 3, 6, 6, None)
    assert source.received_at == to_datetime(hub.clock.now_ns())
    (named,) = [one for one in hub.registry.machines("local") if one.named_only]
    assert named.machine.name == "node-2"

    await hub.advance(2 * INTERVAL, [*agents, Node("node-2"), kubernetes])  # node-2 now runs an agent
    record = await hub.cluster()
    assert counts(record) == ("6 of 6 expected by nvml", ExpectedGpus(nvml=6, kubernetes=6))
    assert machines(record) == {State.LIVE: 3}
    assert len(hub.registry.machines("local")) == 3
    assert not any(one.named_only for one in hub.registry.machines("local"))


@pytest.mark.parametrize("agent_is_first", [True, False])
async def test_evidence_joins_a_node_with_another_host_name(hub: FakeClockHub, agent_is_first: bool) -> None:
    agent, kubernetes = Node("ip-10-0-0-1"), Kubernetes(node_0=2)
    uuid = "4c4c4544-0042-3510-8051-b7c04f4e3533"
    agent.machine = Machine(name="ip-10-0-0-1", system_uuid=uuid, boot_id="boot-1")
    kubernetes.evidence["node_0"] = Machine(name="node-0", system_uuid=uuid, k8s_node_uid="u0")
    senders = [agent, kubernetes]
    for sender in senders if agent_is_first else reversed(senders):
        await hub.advance(2 * INTERVAL, [sender])
    await hub.advance(2 * INTERVAL, senders)
    (machine,) = hub.registry.machines("local")
    assert (machine.machine.name, machine.named_only) == ("ip-10-0-0-1", False)
    assert counts(await hub.cluster()) == ("2 of 2 expected by nvml", ExpectedGpus(nvml=2, kubernetes=2))


async def test_replaced_node_of_the_same_name_is_another_machine(hub: FakeClockHub) -> None:
    kubernetes = Kubernetes(node_0=2)
    for uid in ("u0", "u1"):
        kubernetes.evidence["node_0"] = Machine(name="node-0", k8s_node_uid=uid)
        await hub.advance(2 * INTERVAL, [kubernetes])
    found = {one.machine.k8s_node_uid for one in hub.registry.machines("local") if one.named_only}
    assert found == {"u0", "u1"}


@pytest.mark.parametrize("sends_heartbeat", [True, False])
async def test_importer_is_live_but_the_node_it_names_is_not(hub: FakeClockHub, sends_heartbeat: bool) -> None:
    kubernetes = Kubernetes(node_0=8)
    kubernetes.sends_heartbeat = sends_heartbeat
    await hub.advance(4 * INTERVAL, [kubernetes])
    record = await hub.cluster()
    assert machines(record) == {State.NEVER_SEEN: 1}
    assert record.freshness is not None
    assert record.freshness.senders == {State.LIVE: 1}


async def test_reports_of_kubernetes_keep_no_node_live(hub: FakeClockHub) -> None:
    agent, kubernetes = Node("node-0"), Kubernetes(node_0=2)
    await hub.advance(2 * INTERVAL, [kubernetes, agent])
    await hub.advance(400, [kubernetes])
    assert machines(await hub.cluster()) == {State.STALE: 1}
    await hub.advance(3600, [kubernetes])
    record = await hub.cluster()
    assert machines(record) == {State.LOST: 1}
    assert counts(record) == ("0 of 2 expected by nvml", ExpectedGpus(nvml=2, kubernetes=2))


async def test_node_that_left_kubernetes_is_not_expected(hub: FakeClockHub) -> None:
    kubernetes = Kubernetes(node_0=8, node_1=8)
    await hub.advance(2 * INTERVAL, [kubernetes])
    kubernetes.gpus_by_node["node_1"] = None  # its series ended
    await hub.advance(INTERVAL, [kubernetes])
    assert counts(await hub.cluster()) == ("0 of 8 expected by kubernetes", ExpectedGpus(kubernetes=8))
    del kubernetes.gpus_by_node["node_1"]
    await hub.advance(590, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 2}
    await hub.advance(60, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1, State.RETIRED: 1}
    kubernetes.gpus_by_node["node_1"] = 8
    await hub.advance(INTERVAL, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 2}


async def test_nodes_and_numbers_last_while_a_collector_repeats_them_in_an_outage(hub: FakeClockHub) -> None:
    collector = Kubernetes(node_0=8)
    collector.sends_heartbeat = True
    await hub.advance(2 * INTERVAL, [collector])
    collector.measured_at = hub.clock.now_ns()
    await hub.advance(3600, [collector])
    record = await hub.cluster()
    assert machines(record) == {State.NEVER_SEEN: 1}
    assert counts(record) == ("0 of 8 expected by kubernetes", ExpectedGpus(kubernetes=8))
    assert record.coverage is not None
    (source,) = record.coverage.kubernetes
    assert source.measured_at == to_datetime(collector.measured_at)


async def test_kubernetes_count_without_an_end_expires(hub: FakeClockHub) -> None:
    agent, kubernetes = Node("node-0"), Kubernetes(node_0=8)
    await hub.advance(INTERVAL, [agent, kubernetes])
    await hub.advance(590, [agent])
    assert counts(await hub.cluster())[1] == ExpectedGpus(nvml=2, kubernetes=8)
    await hub.advance(30, [agent])
    assert counts(await hub.cluster()) == ("2 of 2 expected by nvml", ExpectedGpus(nvml=2))


async def test_zero_gpus_are_a_count(hub: FakeClockHub) -> None:
    agent, kubernetes = Node("node-0"), Kubernetes(node_0=0)
    await hub.advance(2 * INTERVAL, [agent, kubernetes])
    assert counts(await hub.cluster()) == ("2 of 2 expected by nvml", ExpectedGpus(nvml=2, kubernetes=0))


async def test_registration_takes_precedence_over_kubernetes(hub: FakeClockHub) -> None:
    hub.registry.put_cluster("local", ClusterSpec(expected={"H200": 16}), to_datetime(hub.clock.now_ns()))
    await hub.advance(2 * INTERVAL, [Node("node-0"), Kubernetes(node_0=32)])
    record = await hub.cluster()
    assert counts(record) == ("2 of 16 expected by registration", ExpectedGpus(registration=16, nvml=2, kubernetes=32))


async def test_retired_node_is_not_revived_by_kubernetes(hub: FakeClockHub) -> None:
    kubernetes = Kubernetes(node_0=8)
    await hub.advance(INTERVAL, [kubernetes])
    (named,) = hub.registry.machines("local")
    hub.registry.retire_machine(named.id, hub.clock.now_ns())
    await hub.advance(4 * INTERVAL, [kubernetes])
    record = await hub.cluster()
    assert machines(record) == {State.RETIRED: 1}
    assert counts(record) == ("0, expected: unknown", ExpectedGpus())
    assert (await hub.sender(kubernetes)).liveness.state is State.LIVE
    await hub.advance(INTERVAL, [Node("node-0")])
    assert machines(await hub.cluster()) == {State.LIVE: 1}


async def test_named_nodes_survive_an_outage_of_the_hub(hub: FakeClockHub) -> None:
    kubernetes = Kubernetes(node_0=8)
    await hub.advance(2 * INTERVAL, [kubernetes])
    hub.restart_after(3600)
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1}
    await hub.advance(INTERVAL, [kubernetes])
    assert machines(await hub.overview.fleet()) == {State.NEVER_SEEN: 1}
    assert counts(await hub.cluster()) == ("0 of 8 expected by kubernetes", ExpectedGpus(kubernetes=8))


@pytest.mark.parametrize("by", [-86400.0, 86400.0])
async def test_hub_clock_step_does_not_expire_named_nodes(hub: FakeClockHub, by: float) -> None:
    kubernetes = Kubernetes(node_0=8, node_1=8)
    await hub.advance(2 * INTERVAL, [kubernetes])
    hub.clock.step(by)
    hub.flushes = False
    await hub.advance(INTERVAL, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 2}
    hub.flushes = True
    await hub.advance(900, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 2}
    del kubernetes.gpus_by_node["node_1"]
    await hub.advance(660, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1, State.RETIRED: 1}


async def test_kubernetes_nodes_stay_expected_without_a_store(hub: FakeClockHub) -> None:
    kubernetes = Kubernetes(node_0=8)
    await hub.advance(2 * INTERVAL, [kubernetes])
    hub.flushes = False
    await hub.advance(900, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1}
    hub.restart_after(900)
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1}
    await hub.advance(INTERVAL, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1}
