"""Machines that Kubernetes names: expected, and heard of only where they speak themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.codecs.batch import encode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.catalogue import Lane
from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.model.liveness import Expected, State
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Provenance, Sample
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import to_datetime
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.clock import FakeClock
from tests.hub.liveness.hub_in_time import INTERVAL, HubInTime, Node

READER = "remote_write/kube_state_metrics"


class Kubernetes(Node):
    """Who brings what Kubernetes says: node to GPUs, None for one of which its series have ended."""

    def __init__(self, **says: int | None) -> None:
        super().__init__("remote_write/prometheus")
        self.says = dict(says)
        self.beats = False

    def body(self, clock: FakeClock, *, at: int | None = None, seq: int | None = None) -> bytes:
        self.seq += 1
        now = clock.now_ns()
        reports = []
        for name, gpus in self.says.items():
            value = Absent(Reason.NO_DATA, "ended") if gpus is None else gpus
            dims = (DimValue("kubernetes_capacity_devices", ("nvidia_com_gpu",), value),)
            sample = Sample(
                view=None, reader=READER, lane=Lane.SLOW, measured_at=now, values={}, dims=dims,
                provenance=Provenance.IMPORTED,
            )  # fmt: skip
            reports.append(MachineReport(machine=Machine(name=name.replace("_", "-")), samples=(sample,)))
        return encode(
            Batch(
                cluster=self.cluster, sender=self.name, epoch=self.epoch, seq=self.seq, sent_at=now,
                heartbeat=Heartbeat(interval_seconds=INTERVAL, version="1", started_at=1) if self.beats else None,
                reports=tuple(reports),
            )
        )  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubInTime]:
    hub = HubInTime(tmp_path, "local")
    yield hub
    hub.end()


def machines(record: ClusterRecord | FleetAnswer) -> dict[State, int]:
    if isinstance(record, FleetAnswer):
        return record.machines
    assert record.freshness is not None
    return record.freshness.machines


def counts(record: ClusterRecord) -> tuple[str, Expected]:
    assert record.coverage is not None
    return record.coverage.summary, record.coverage.sources


async def test_node_known_to_kubernetes_only_was_never_seen(hub: HubInTime) -> None:
    agents, kubernetes = [Node("node-0"), Node("node-1")], Kubernetes(node_0=2, node_1=2, node_2=2)
    await hub.lets_pass(2 * INTERVAL, [*agents, kubernetes])
    record = await hub.cluster()
    assert counts(record) == ("4 of 6 expected by kubernetes", Expected(nvml=4, kubernetes=6))
    assert machines(record) == {State.LIVE: 2, State.NEVER_SEEN: 1}
    assert record.freshness is not None
    assert record.freshness.liveness.partial == (
        "1 of 3 machines are not live",
        "GPUs reporting: 4 of 6 expected by kubernetes",
    )
    assert record.coverage is not None
    (told,) = record.coverage.kubernetes
    assert (told.reader, told.machines, told.gpus, told.counted, told.allocatable) == (READER, 3, 6, 6, None)
    assert told.received_at == to_datetime(hub.clock.now_ns())
    (named,) = [one for one in hub.registry.machines("local") if one.named_only]
    assert named.machine.name == "node-2"

    await hub.lets_pass(2 * INTERVAL, [*agents, Node("node-2"), kubernetes])  # it starts an agent: it is that machine
    record = await hub.cluster()
    assert counts(record) == ("6 of 6 expected by nvml", Expected(nvml=6, kubernetes=6))
    assert machines(record) == {State.LIVE: 3}
    assert len(hub.registry.machines("local")) == 3
    assert not any(one.named_only for one in hub.registry.machines("local"))


@pytest.mark.parametrize("beats", [True, False])
async def test_what_a_teller_names_is_not_what_it_heard(hub: HubInTime, beats: bool) -> None:
    kubernetes = Kubernetes(node_0=8)
    kubernetes.beats = beats
    await hub.lets_pass(4 * INTERVAL, [kubernetes])
    record = await hub.cluster()
    assert machines(record) == {State.NEVER_SEEN: 1}
    assert record.freshness is not None
    assert record.freshness.senders == {State.LIVE: 1}


async def test_that_kubernetes_goes_on_naming_it_makes_no_node_live(hub: HubInTime) -> None:
    agent, kubernetes = Node("node-0"), Kubernetes(node_0=2)
    await hub.lets_pass(2 * INTERVAL, [kubernetes, agent])
    await hub.lets_pass(400, [kubernetes])
    assert machines(await hub.cluster()) == {State.STALE: 1}
    await hub.lets_pass(3600, [kubernetes])
    record = await hub.cluster()
    assert machines(record) == {State.LOST: 1}
    assert counts(record) == ("0 of 2 expected by nvml", Expected(nvml=2, kubernetes=2))


async def test_what_kubernetes_names_no_more_nobody_expects(hub: HubInTime) -> None:
    kubernetes = Kubernetes(node_0=8, node_1=8)
    await hub.lets_pass(2 * INTERVAL, [kubernetes])
    kubernetes.says["node_1"] = None  # its series end
    await hub.lets_pass(INTERVAL, [kubernetes])
    assert counts(await hub.cluster()) == ("0 of 8 expected by kubernetes", Expected(kubernetes=8))
    del kubernetes.says["node_1"]
    await hub.lets_pass(590, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 2}
    await hub.lets_pass(60, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1, State.RETIRED: 1}
    kubernetes.says["node_1"] = 8
    await hub.lets_pass(INTERVAL, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 2}


async def test_a_word_without_an_end_is_believed_for_ten_minutes(hub: HubInTime) -> None:
    agent, kubernetes = Node("node-0"), Kubernetes(node_0=8)
    await hub.lets_pass(INTERVAL, [agent, kubernetes])
    await hub.lets_pass(590, [agent])
    assert counts(await hub.cluster())[1] == Expected(nvml=2, kubernetes=8)
    await hub.lets_pass(30, [agent])
    assert counts(await hub.cluster()) == ("2 of 2 expected by nvml", Expected(nvml=2))


async def test_zero_is_a_count(hub: HubInTime) -> None:
    agent, kubernetes = Node("node-0"), Kubernetes(node_0=0)
    await hub.lets_pass(2 * INTERVAL, [agent, kubernetes])
    assert counts(await hub.cluster()) == ("2 of 2 expected by nvml", Expected(nvml=2, kubernetes=0))


async def test_a_registration_comes_before_kubernetes(hub: HubInTime) -> None:
    hub.registry.put_cluster("local", ClusterSpec(expected={"H200": 16}), to_datetime(hub.clock.now_ns()))
    await hub.lets_pass(2 * INTERVAL, [Node("node-0"), Kubernetes(node_0=32)])
    record = await hub.cluster()
    assert counts(record) == ("2 of 16 expected by registration", Expected(registration=16, nvml=2, kubernetes=32))


async def test_an_operator_s_word_stands_against_kubernetes(hub: HubInTime) -> None:
    kubernetes = Kubernetes(node_0=8)
    await hub.lets_pass(INTERVAL, [kubernetes])
    (named,) = hub.registry.machines("local")
    hub.registry.retire_machine(named.id, hub.clock.now_ns())
    await hub.lets_pass(4 * INTERVAL, [kubernetes])
    record = await hub.cluster()
    assert machines(record) == {State.RETIRED: 1}
    assert counts(record) == ("0, expected: unknown", Expected())
    assert (await hub.sender(kubernetes)).liveness.state is State.LIVE
    await hub.lets_pass(INTERVAL, [Node("node-0")])
    assert machines(await hub.cluster()) == {State.LIVE: 1}


async def test_a_hub_that_was_down_still_knows_who_was_only_named(hub: HubInTime) -> None:
    kubernetes = Kubernetes(node_0=8)
    await hub.lets_pass(2 * INTERVAL, [kubernetes])
    hub.is_down_for(3600)
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1}
    await hub.lets_pass(INTERVAL, [kubernetes])
    assert machines(await hub.overview.fleet()) == {State.NEVER_SEEN: 1}
    assert counts(await hub.cluster()) == ("0 of 8 expected by kubernetes", Expected(kubernetes=8))


@pytest.mark.parametrize("by", [-86400.0, 86400.0])
async def test_a_clock_that_is_set_changes_nothing_of_who_is_named(hub: HubInTime, by: float) -> None:
    kubernetes = Kubernetes(node_0=8, node_1=8)
    await hub.lets_pass(2 * INTERVAL, [kubernetes])
    hub.clock.step(by)
    hub.flushes = False
    await hub.lets_pass(INTERVAL, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 2}
    hub.flushes = True
    await hub.lets_pass(900, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 2}
    del kubernetes.says["node_1"]
    await hub.lets_pass(660, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1, State.RETIRED: 1}


async def test_kubernetes_nodes_stay_expected_without_a_store(hub: HubInTime) -> None:
    kubernetes = Kubernetes(node_0=8)
    await hub.lets_pass(2 * INTERVAL, [kubernetes])
    hub.flushes = False
    await hub.lets_pass(900, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1}
    hub.is_down_for(900)
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1}
    await hub.lets_pass(INTERVAL, [kubernetes])
    assert machines(await hub.cluster()) == {State.NEVER_SEEN: 1}
