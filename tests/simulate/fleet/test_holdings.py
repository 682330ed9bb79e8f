"""Holders of simulated devices: their states, and the faults that change them."""

import pytest

from gpufleet.model.holdings import HolderState, HoldingVerdict
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.holdings import device_states, holdings, holdings_due

START = 1_795_000_000 * NANOS
INFERENCE, MIG, VM, IDLE = 3, 4, 5, 8


def fleet_with(faults: str = "") -> Fleet:
    return Fleet(FleetSpec(nodes=8, gpus=2, faults=parse_faults(faults, START)))


def second(number: float) -> int:
    return START + int(number * NANOS)


def test_idle_gpus_are_reported_as_free() -> None:
    fleet = fleet_with()
    states = device_states(fleet, fleet.node(1, IDLE), START)
    assert {one.view: one.state for one in states} == {
        gpu.view.key: HolderState.FREE for gpu in fleet.node(1, IDLE).gpus
    }


def test_host_names_passed_through_gpus_by_their_address() -> None:
    fleet = fleet_with()
    node = fleet.node(1, VM)
    keys = {one.view for one in device_states(fleet, node, START)}
    assert keys == {one.view for one in holdings(fleet, node, START - 1, START)} == {
        "gpu/pci/0000:1b:00.0", "gpu/pci/0000:43:00.0"
    }  # fmt: skip


def test_divided_gpu_has_states_of_its_parts_only() -> None:
    fleet = fleet_with()
    node = fleet.node(1, MIG)
    assert {one.view for one in device_states(fleet, node, START)} == {
        part.view.key for gpu in node.gpus for part in gpu.parts
    }


@pytest.mark.parametrize("kind", ["held-idle", "held-parked"])
def test_holding_of_a_fault_begins_and_ends_with_it(kind: str) -> None:
    fleet = fleet_with(f"{kind}@+5m/10m:c1/n{IDLE}/g0")
    node = fleet.node(1, IDLE)
    assert [holdings_due(fleet, node, second(at - 10), second(at)) for at in (290, 300, 310, 900)] == [
        False, True, False, True
    ]  # fmt: skip
    (present,) = holdings(fleet, node, second(300), second(310))
    (ended,) = holdings(fleet, node, second(895), second(905))
    assert (present.view, present.since, present.until) == (node.gpus[0].view.key, second(300), None)
    assert (ended.holder, ended.until) == (present.holder, second(900))
    states = [{one.state for one in device_states(fleet, node, second(at))} for at in (290, 310, 910)]
    assert states == [{HolderState.FREE}, {HolderState.FREE, HolderState.HELD}, {HolderState.FREE}]


def test_conflict_is_the_verdict_of_both_holders() -> None:
    fleet = fleet_with(f"holder-conflict@+5m/10m:c1/n{INFERENCE}/g0")
    node = fleet.node(1, INFERENCE)
    first = node.gpus[0].view.key
    found = [one for one in holdings(fleet, node, second(305), second(310)) if one.view == first]
    assert [one.verdict for one in found] == [HoldingVerdict.CONFLICT] * 2
    assert found[1].methods == ("process",)
    after = [one for one in holdings(fleet, node, second(905), second(910)) if one.view == first]
    assert [one.verdict for one in after] == [HoldingVerdict.DECLARED_ONLY]


def test_replaced_guests_take_over_the_gpus() -> None:
    fleet = fleet_with(f"guest-replaced@+5m:c1/n{VM}")
    node = fleet.node(1, VM)
    before, after = (fleet.node_at(node, second(at)).guests for at in (299, 300))
    assert {one.machine.system_uuid for one in before}.isdisjoint(one.machine.system_uuid for one in after)
    assert [one.gpus for one in before] == [one.gpus for one in after]
    assert holdings_due(fleet, node, second(290), second(300))
    found = list(holdings(fleet, node, second(290), second(300)))
    ended, present = [one for one in found if one.until], [one for one in found if not one.until]
    assert {one.holder.id for one in ended} == {one.machine.system_uuid for one in before}
    assert {one.holder.id for one in present} == {one.machine.system_uuid for one in after}
    assert {one.since for one in present} == {one.until for one in ended} == {second(300)}
