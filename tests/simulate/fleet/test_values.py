"""Values of simulated devices: a function of seed and time, possible and consistent."""

import hashlib
import itertools
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.batch import decode
from gpufleet.hub.flush.normalise import normalise
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind
from gpufleet.model.holdings import HolderKind, HolderState, Holding
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import AgentTiming, SimulatedAgent, create_agents
from gpufleet.simulate.fleet.faults import FAULTS, parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.hardware import MODELS
from gpufleet.simulate.fleet.layout import PATTERN, FleetGpu, FleetNode, NodeRole
from gpufleet.simulate.fleet.reports import CollectionPass, machine_reports
from gpufleet.simulate.fleet.values import gpu_fast, gpu_slow

START = 1_795_000_000 * NANOS
DAY = 86_400 * NANOS
FLEET = Fleet(FleetSpec(clusters=len(MODELS), nodes=len(PATTERN)))

instants = st.integers(START, START + 400 * DAY)
places = st.tuples(st.integers(1, len(MODELS)), st.integers(1, len(PATTERN)), st.integers(0, 7))


def bodies(seed: int, rounds: int = 3) -> list[bytes]:
    agents = create_agents(Fleet(FleetSpec(seed=seed, clusters=2, nodes=8)), AgentTiming(start=START))
    for _ in range(rounds):
        for agent in agents:
            agent.collect()
    return [body.content for agent in agents for body in agent.waiting]


def test_seed_determines_the_fleet_to_the_byte() -> None:
    assert bodies(7) == bodies(7)
    assert not set(bodies(7)) & set(bodies(8))


IN_ANOTHER_PROCESS = """
import hashlib, sys
from tests.simulate.fleet.test_values import every_fault
print(hashlib.sha256(b"".join(every_fault())).hexdigest())
"""


def every_fault() -> list[bytes]:
    """Return everything that a fleet with every kind of fault sends in five minutes."""
    kinds = ",".join(f"{kind}@+{10 * at}s:c{at % 2 + 1}" for at, kind in enumerate(FAULTS))
    agents = create_agents(
        Fleet(FleetSpec(seed=7, clusters=2, nodes=8, faults=parse_faults(kinds, START))), AgentTiming(start=START)
    )
    for _ in range(30):
        for agent in agents:
            agent.collect()
    return [body.content for agent in agents for body in agent.waiting]


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert digests == {hashlib.sha256(b"".join(every_fault())).hexdigest()}


def correlation(one: list[float], other: list[float]) -> float:
    return statistics.correlation(one, other)


def test_power_temperature_and_clocks_follow_load() -> None:
    node, gpu = busy(FLEET, NodeRole.INFERENCE)  # its load follows the day and is never zero
    every = [START + 60 * step * NANOS for step in range(1440)]
    strains = [FLEET.activity(node, gpu, at) for at in every]
    boot = FLEET.booted_at(node, START)
    readings = [gpu_fast(gpu, at, boot, one) for at, one in zip(every, strains, strict=True)]

    def of(name: str) -> list[float]:
        found = [one[name] for one in readings]
        assert all(isinstance(value, int | float) for value in found)
        return [float(value) for value in found if isinstance(value, int | float)]

    load, power, heat = [one.load for one in strains], of("gpu_power_watts"), of("gpu_temperature_celsius")
    assert correlation(load, power) > 0.999
    assert correlation(of("gpu_utilization_ratio"), power) > 0.99
    assert correlation(of("gpu_sm_clock_hertz"), load) < -0.9
    behind = {lag: correlation(power[: -lag or None], heat[lag:]) for lag in (0, 2, 30)}
    assert behind[2] > behind[0] > behind[30]  # time constant of 150 s
    assert behind[2] > 0.95


def values_at(fleet: Fleet, place: tuple[int, int, int], at: int) -> dict[str, object]:
    cluster, number, which = place
    node = fleet.node(cluster, number)
    gpu = node.all_gpus[which]
    return dict(gpu_fast(gpu, at, fleet.booted_at(node, at), fleet.activity(node, gpu, at)))


def test_values_do_not_depend_on_earlier_requests() -> None:
    requests = [
        ((c, n, g), START + t * 7 * NANOS) for c in (1, 4) for n in (1, 3, 4) for g in (0, 7) for t in range(20)
    ]
    in_order = [values_at(FLEET, *one) for one in requests]
    shuffled = random.Random(1).sample(range(len(requests)), len(requests))
    fresh = Fleet(FLEET.spec)
    found = {at: values_at(fresh, *requests[at]) for at in shuffled}
    assert [found[at] for at in range(len(requests))] == in_order


@given(places, instants)
def test_values_are_possible_and_consistent(place: tuple[int, int, int], at: int) -> None:
    values = values_at(FLEET, place, at)
    assert len(values) == 40
    for name, value in values.items():
        metric = CATALOGUE[name]
        if isinstance(value, Absent):
            assert any(one.reason is value.reason for one in metric.absent_when), name
        elif isinstance(value, int | float):
            assert metric.low is None or value >= metric.low, name
            assert metric.high is None or value <= metric.high, name
        else:
            assert value in metric.states
    model = FLEET.node(*place[:2]).all_gpus[place[2]].model
    memory = [values[f"gpu_memory_{part}_bytes"] for part in ("used", "free", "reserved")]
    assert sum(one for one in memory if isinstance(one, int)) == model.memory_bytes
    power, heat, clock = (values[name] for name in ("gpu_power_watts", "gpu_temperature_celsius", "gpu_sm_clock_hertz"))
    assert isinstance(power, float)
    assert isinstance(heat, float)
    assert model.idle_watts <= power <= model.limit_watts
    assert 25 <= heat < model.slowdown_celsius
    resting = power < model.idle_watts + 0.01 * (model.limit_watts - model.idle_watts)
    if not resting:
        assert clock in range(model.busy_hertz - 300_000_000, model.busy_hertz + 1)


def test_every_gpu_has_the_same_metrics_in_one_order() -> None:
    assert len({tuple(values_at(FLEET, (c, n, 0), START)) for c in (1, 2, 3, 4) for n in range(1, 21)}) == 1


def busy(fleet: Fleet, role: NodeRole = NodeRole.TRAINING) -> tuple[FleetNode, FleetGpu]:
    node = next(node for node in fleet.nodes() if node.role is role)
    return node, node.gpus[0]


@pytest.mark.parametrize(
    "role", [NodeRole.TRAINING, NodeRole.INFERENCE, NodeRole.BATCH, NodeRole.MIG, NodeRole.VGPU, NodeRole.IDLE]
)
def test_energy_is_the_integral_of_power(role: NodeRole) -> None:
    node, gpu = busy(FLEET, role)
    strains = [FLEET.activity(node, gpu, START + 3 * step * NANOS) for step in range(8_000)]
    power = sum(3 * (low.watts + high.watts) / 2 for low, high in itertools.pairwise(strains))
    assert strains[-1].joules - strains[0].joules == pytest.approx(power, rel=1e-3)
    assert strains[-1].joules > 24_000 * gpu.model.idle_watts


def test_energy_is_the_integral_of_power_of_a_hot_gpu() -> None:
    (fault,) = parse_faults("hot-gpu@+10m/20m", START)
    fleet = Fleet(FleetSpec(nodes=1, faults=(fault,)))
    node = fleet.node(1, 1)
    gpu, healthy = node.gpus[0], Fleet(FleetSpec(nodes=1))
    strains = [fleet.activity(node, gpu, START + step * NANOS) for step in range(3600)]
    power = sum((low.watts + high.watts) / 2 for low, high in itertools.pairwise(strains))
    assert strains[-1].joules - strains[0].joules == pytest.approx(power, rel=1e-3)
    spared = (
        healthy.activity(node, gpu, START + 3600 * NANOS).joules
        - fleet.activity(node, gpu, START + 3600 * NANOS).joules
    )
    assert spared > 0
    assert [one.hot for one in strains].count(True) == 1200


def test_hot_gpu_is_throttled_with_two_events() -> None:
    (fault,) = parse_faults("hot-gpu=4@+10m/20m", START)
    fleet = Fleet(FleetSpec(nodes=1, faults=(fault,)))
    node, gpu = fleet.node(1, 1), fleet.node(1, 1).gpus[0]
    cool, hot = values_at(fleet, (1, 1, 0), fault.begin - NANOS), values_at(fleet, (1, 1, 0), fault.begin)
    assert hot["gpu_temperature_celsius"] == gpu.model.slowdown_celsius + 4
    assert (cool["gpu_clock_event_reasons_mask"], hot["gpu_clock_event_reasons_mask"]) == (0, 0x48)
    pairs = {name: (cool[name], hot[name]) for name in ("gpu_sm_clock_hertz", "gpu_power_watts")}
    assert all(isinstance(a, int | float) and isinstance(b, int | float) and b < a for a, b in pairs.values()), pairs
    look = CollectionPass(at=fault.end, since=fault.begin - 1, lanes=[Lane.FAST], intervals={Lane.FAST: 10.0})
    (report,) = machine_reports(fleet, node, look)
    assert [(event.kind, event.at) for event in report.events] == [
        ("throttle_started", fault.begin),
        ("throttle_ended", fault.end),
    ]


@given(places, instants, st.lists(st.integers(1, 3 * DAY), min_size=2, max_size=8))
def test_counters_only_grow_until_the_next_boot(place: tuple[int, int, int], at: int, spans: list[int]) -> None:
    node = FLEET.node(*place[:2])
    series = []
    for span in spans:
        series.append((FLEET.booted_at(node, at), values_at(FLEET, place, at)))
        at += span
    for (boot, before), (later_boot, after) in itertools.pairwise(series):
        assert later_boot >= boot
        for name, value in before.items():
            newer = after[name]
            if CATALOGUE[name].kind is MetricKind.COUNTER and isinstance(value, int | float) and boot == later_boot:
                assert isinstance(newer, int | float)
                assert newer >= value, name


def test_temperature_lags_behind_power() -> None:
    node, gpu = busy(FLEET)
    strains = [FLEET.activity(node, gpu, START + 30 * step * NANOS) for step in range(2880)]
    begin = next(at for at, (one, then) in enumerate(itertools.pairwise(strains)) if one.load == 0 < then.load)
    cold, soon, later = strains[begin], strains[begin + 4], strains[begin + 40]
    assert cold.celsius < soon.celsius < later.celsius
    assert (later.celsius - cold.celsius) > 20


def test_mig_geometries_are_valid() -> None:
    for model in MODELS:
        for geometry in model.geometries:
            taken = [range(slot.start, slot.start + slot.profile.memory_slices) for slot in geometry]
            eighths = [eighth for one in taken for eighth in one]
            assert len(eighths) == len(set(eighths))
            assert max(eighths) < 8
            assert sum(slot.profile.slices for slot in geometry) <= 7
            assert sum(slot.profile.memory_bytes for slot in geometry) <= model.memory_bytes
            assert len({slot.instance for slot in geometry}) == len(geometry)


def test_load_of_a_mig_gpu_is_the_sum_of_its_parts() -> None:
    node, gpu = busy(FLEET, NodeRole.MIG)
    now = FLEET.activity(node, gpu, START)
    load = sum(part.share * part.work.cycle.load_at(part.work.day(START)[1]) for part in gpu.parts)
    assert now.load == pytest.approx(load)
    assert len({part.view.uuid for part in gpu.parts}) == len(gpu.parts) >= 2


def test_mig_gpu_reports_its_maximum_of_devices() -> None:
    node, gpu = busy(FLEET, NodeRole.MIG)
    now = FLEET.activity(node, gpu, START)
    assert gpu_slow(gpu, START, now)["gpu_mig_devices_max"] == 7
    whole = FLEET.node(1, 1).gpus[0]
    assert "gpu_mig_devices_max" not in gpu_slow(whole, START, now)


def test_hub_normalises_every_batch_without_corrections() -> None:
    for agent in create_agents(FLEET, AgentTiming(start=START)):
        agent.collect()
        found = normalise(decode(agent.take().content), START + DAY)
        assert (found.unknown_metrics, found.invalid_values, found.future_rows, found.repeated_rows) == ({}, {}, 0, 0)


def test_training_nodes_share_a_job_and_all_holder_kinds_occur() -> None:
    node, other = FLEET.node(1, 1), FLEET.node(1, 2)
    assert node.role is other.role is NodeRole.TRAINING
    ids = {gpu.loads[0][1].holder(START + 5 * step * 60 * NANOS) for gpu in (*node.gpus, *other.gpus) for step in (1,)}
    assert len(ids) == 1
    agents = [agent for agent in create_agents(FLEET, AgentTiming(start=START)) if agent.cluster == 1]
    kinds = set()
    for agent in agents:
        assert isinstance(agent, SimulatedAgent)
        agent.collect()
        kinds |= {held.holder.kind for part in decode(agent.take().content).parts for held in part.holdings}
    assert kinds == {"job", "pod", "vm"}


def test_jobs_have_users_and_pods_have_owners() -> None:
    held: list[Holding] = []
    for agent in create_agents(FLEET, AgentTiming(start=START)):
        for _ in range(2):
            agent.collect()
            held += [one for part in decode(agent.take().content).parts for one in part.holdings]
    jobs = [one.holder for one in held if one.holder.kind is HolderKind.JOB]
    assert {one.queue for one in jobs} == {"train", "batch"}
    assert all(one.user and one.account and one.qos for one in jobs)
    pods = [one.holder for one in held if one.holder.kind is HolderKind.POD]
    assert {tuple(owner.kind for owner in one.owners) for one in pods} == {
        ("ReplicaSet", "Deployment"),
        ("StatefulSet",),
    }


EVERY = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0}


def test_simulated_holding_is_reported_until_its_end() -> None:
    node = next(one for one in FLEET.nodes() if one.role is NodeRole.BATCH)
    work = node.gpus[0].loads[0][1]
    begun = next(at for at in range(START, START + DAY, 60 * NANOS) if work.holder(at) is not None)
    holder, since, until = work.holder(begun) or (None, 0, 0)
    pass_ = CollectionPass(at=until + NANOS, since=until - NANOS, lanes=[Lane.FAST], intervals=EVERY, ahead=5)
    reported = machine_reports(FLEET, node, pass_)[0].holdings
    ended = [one for one in reported if one.view == node.gpus[0].view.key and one.holder == holder]
    assert [(one.since, one.until) for one in ended] == [(since + 5, until + 5)]


def test_simulated_device_is_held_while_it_has_a_holding() -> None:
    node = next(one for one in FLEET.nodes() if one.role is NodeRole.BATCH)
    seen = set()
    for minute in range(0, 1440, 10):
        at = START + minute * 60 * NANOS
        pass_ = CollectionPass(at=at, since=at - NANOS, lanes=list(EVERY), intervals=EVERY, ahead=5)
        report = machine_reports(FLEET, node, pass_)[0]
        states = {one.view: one.state for one in report.device_holders or ()}
        held = {one.view for one in report.holdings if one.until is None}
        assert {view for view, state in states.items() if state is HolderState.HELD} == held
        seen |= set(states.values())
    assert seen == {HolderState.HELD, HolderState.FREE}
