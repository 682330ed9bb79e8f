"""A fleet without faults: use agrees with holders, readings change, and no rule about its values fires."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from gpufleet.fleet.facts.metrics import NOISY_READINGS, NUMBERS
from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.judgement import judge
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES_BY_ID
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.finding import RuleScope
from gpufleet.model.holdings import HolderState
from gpufleet.model.reading import Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.hardware import MODELS
from gpufleet.simulate.fleet.holdings import present_holdings
from gpufleet.simulate.fleet.layout import FleetGpu, FleetNode
from gpufleet.simulate.fleet.reports import CollectionPass, machine_reports
from gpufleet.simulate.fleet.values import IDLE_LOAD, gpu_fast

START = 1_795_000_000 * NANOS
MINUTE, DAY = 60 * NANOS, 86_400 * NANOS
LANES = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0}
FLEET = Fleet(FleetSpec(clusters=len(MODELS), nodes=8, gpus=2))
NODES = [FLEET.node(1, number) for number in range(1, 9)]

LONGEST_IDLE = 10 * MINUTE
"""Longest time for which a held GPU may be idle: shorter than `gpu.allocated_idle` allows."""


def devices(node: FleetNode, gpu: FleetGpu, at: int) -> tuple[bool, float]:
    """Return whether a GPU or a part of it is held, and its load."""
    slot = f"gpu/pci/{gpu.view.pci_address}" if not node.is_passthrough else None
    keys = {gpu.view.key, slot, *(part.view.key for part in gpu.parts)}
    held = {one.view.key for one in present_holdings(FLEET, node, at)}
    return bool(held & keys) or (node.is_passthrough and bool(held)), FLEET.activity(node, gpu, at).load


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.role)
def test_gpu_is_used_if_and_only_if_it_is_held(node: FleetNode) -> None:
    gpu = node.all_gpus[0]
    idle_since = None
    for at in range(START, START + DAY, 2 * MINUTE):
        is_held, load = devices(node, gpu, at)
        assert is_held or load == 0
        idle_since = (idle_since or at) if is_held and load < IDLE_LOAD else None
        assert idle_since is None or at - idle_since <= LONGEST_IDLE


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.role)
def test_noisy_readings_change_between_samples(node: FleetNode) -> None:
    gpu = node.all_gpus[0]
    rows = []
    for at in range(START, START + 60 * MINUTE, MINUTE):
        values = gpu_fast(gpu, at, FLEET.booted_at(node, at), FLEET.activity(node, gpu, at))
        rows.append([values[name] for name in NOISY_READINGS if name in values and "energy" not in name])
    identical = [len(list(same)) for _, same in itertools.groupby(rows)]
    assert max(identical) <= 2


def gpu_values(at: int) -> Iterator[dict[str, Value]]:
    """Yield all readings of each GPU of the fleet, with its holder state under `held`."""
    pass_ = CollectionPass(at=at, since=at - MINUTE, lanes=list(LANES), intervals=LANES)
    for node in FLEET.nodes():
        for report in machine_reports(FLEET, node, pass_):
            states = {one.view: one.state is HolderState.HELD for one in report.device_holders or ()}
            of_gpu: dict[str, dict[str, Value]] = {}
            for one in report.samples:
                if one.view is not None and one.view.kind is ViewKind.GPU and one.reader != "pci":
                    values = {name: value for name, value in one.values.items() if not isinstance(value, Absent)}
                    of_gpu.setdefault(one.view.key, {}).update(values)
            for key, values in of_gpu.items():
                yield {**values, **({"held": int(states[key])} if key in states else {})}


def test_no_value_of_a_clean_fleet_fires_a_rule() -> None:
    rules = [one for one in RULES_BY_ID.values() if one.scope is RuleScope.DEVICE]
    inputs = {**NUMBERS, "held": "held", "held_seconds": "held_seconds"}
    firing = set()
    known: set[str] = set()
    for at in range(START, START + DAY, 79 * MINUTE):
        every = [{**values, "held_seconds": 3600} for values in gpu_values(at)]
        columns = {name: np.array([one.get(metric, np.nan) for one in every], float) for name, metric in inputs.items()}
        table = FactTable(RuleScope.DEVICE, [str(number) for number in range(len(every))], columns)
        for name, verdicts in judge(FleetFacts.of(table), rules, Thresholds(rules), at).verdicts.items():
            firing |= {name} if len(verdicts.firing) else set()
            known |= {name} if not verdicts.unknown.all() else set()
    assert firing == set()
    assert {"gpu.impossible_value", "gpu.used_unallocated", "gpu.allocated_idle", "gpu.busy_at_low_power"} <= known
