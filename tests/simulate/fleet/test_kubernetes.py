"""Simulated Kubernetes clusters: resources and pods agree with the nodes and holders, except by faults."""

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.model.holdings import HolderKind, HolderState
from gpufleet.model.kubernetes import GpuResourceKind
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import WireBatch
from gpufleet.simulate.fleet.agents import AgentTiming, create_agents
from gpufleet.simulate.fleet.faults import parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.holdings import device_states, holdings, present_holdings
from gpufleet.simulate.fleet.kubernetes import collector_name, collector_part

START = 1_795_000_000 * NANOS
INFERENCE, MIG = 3, 4


def fleet_with(fault: str) -> Fleet:
    return Fleet(FleetSpec(nodes=8, gpus=2, faults=parse_faults(fault, START)))


def second(number: float) -> int:
    return START + int(number * NANOS)


def sent(fleet: Fleet, seconds: int) -> list[WireBatch]:
    """Return the batches of the collectors of a fleet within a time."""
    found = []
    for agent in create_agents(fleet, AgentTiming(start=START, at_once=True)):
        while agent.name == collector_name(fleet, agent.cluster) and agent.next_at <= second(seconds):
            agent.collect()
        found += [decode(one.content) for one in agent.waiting]
    return found


def test_only_faults_of_kubernetes_bring_a_collector() -> None:
    assert sent(fleet_with("node-off@+1m"), 60) == []
    (first, *_) = batches = sent(fleet_with("attribution-gap@+1m"), 60)
    assert [one.seq for one in batches] == [1, 2, 3]
    assert first.heartbeat is not None
    assert first.cluster_part is not None
    assert {one.name for one in first.machines} == {f"sim-1-n{number:04d}" for number in (INFERENCE, MIG)}


def test_pods_are_those_of_the_holders() -> None:
    fleet = fleet_with("attribution-gap@+1m")
    part = collector_part(fleet, 1, START - 1, START, START)
    held = [one for node in fleet.nodes() for one in present_holdings(fleet, node, START)]
    assert {one.uid for one in part.pods} == {one.holder.id for one in held if one.holder.kind is HolderKind.POD}
    resources = {one.name: one.resources for one in part.nodes}
    (whole,) = resources[f"sim-1-n{INFERENCE:04d}"]
    assert (whole.name, whole.capacity, whole.allocatable) == ("nvidia.com/gpu", 2, 2)
    assert {one.kind for one in resources[f"sim-1-n{MIG:04d}"]} == {GpuResourceKind.MIG}


def test_ended_pods_are_removed() -> None:
    fleet = fleet_with(f"hidden-when-idle@+1m:c1/n{INFERENCE}")
    before, after = (collector_part(fleet, 1, second(at - 30), second(at), second(at)) for at in (30, 75))
    (removed,) = {one.uid for one in before.pods} - {one.uid for one in after.pods}
    assert removed in [one.uid for one in after.removed]


def test_unhealthy_gpu_is_not_allocatable() -> None:
    fleet = fleet_with(f"gpu-unallocatable@+1m/5m:c1/n{INFERENCE}")
    parts = [collector_part(fleet, 1, second(at - 30), second(at), second(at)) for at in (30, 90, 400)]
    assert [part.nodes[0].resources[0].allocatable for part in parts] == [2, 1, 2]


@pytest.mark.parametrize(("at", "state"), [(30, HolderState.HELD), (90, HolderState.UNKNOWN), (400, HolderState.HELD)])
def test_attribution_gap_hides_the_holders_of_pods_only(at: int, state: HolderState) -> None:
    fleet = fleet_with("attribution-gap@+1m/5m:c1")
    node, training = fleet.node(1, INFERENCE), fleet.node(1, 1)
    assert {one.state for one in device_states(fleet, node, second(at))} == {state}
    assert HolderState.UNKNOWN not in {one.state for one in device_states(fleet, training, second(at))}
    ended = [one.until for one in holdings(fleet, node, second(at - 60), second(at))]
    assert ended == ([second(at)] * 2 if state is HolderState.UNKNOWN else [None] * 2)
