"""Inputs of usage: instance type and region of units."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

from gpufleet.fleet.cluster_nodes import NodeMatch
from gpufleet.fleet.usage.units import PhysicalUnit
from gpufleet.hub.query.usage_inputs import place_units
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.kubernetes import ClusterNode
from gpufleet.model.machine import Machine, MachineKind

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Joins:
    """Kubernetes nodes of machines, by machine id."""

    def __init__(self, **nodes: ClusterNode) -> None:
        self._nodes = nodes

    def nodes(self, machines: Sequence[MachineRecord]) -> dict[str, tuple[NodeMatch, int]]:
        return {one.id: (NodeMatch(node=self._nodes[one.id]), 1) for one in machines if one.id in self._nodes}


def record(id_: str, **fields: Any) -> MachineRecord:
    machine = Machine(name=id_, **fields)
    return MachineRecord(id=id_, cluster="c", machine=machine, sender=id_, first_seen=AT, last_seen=AT)


def test_unit_has_the_place_of_its_host_by_report_or_label() -> None:
    records = [
        record("m1", instance_type="p5", region="eu-1"),
        record("m2", instance_type="p4"),
        record("m3"),
        record("g1", kind=MachineKind.GUEST, instance_type="vm", region="guest-region"),
    ]
    node = ClusterNode(uid="u", name="n", instance_type="labelled", region="eu-2")
    units = {
        name: PhysicalUnit("c", name, tuple((machine, "gpu/0") for machine in machines), None, {})
        for name, machines in {"a": ["m1"], "b": ["m2"], "c": ["m3"], "d": ["g1", "m1"], "e": ["g1"], "f": []}.items()
    }
    place_units(units.values(), {one.id: one for one in records}, Joins(m2=node))  # type: ignore[arg-type]
    assert {name: (unit.instance_type, unit.region) for name, unit in units.items()} == {
        "a": ("p5", "eu-1"),
        "b": ("p4", "eu-2"),
        "c": (None, None),
        "d": ("p5", "eu-1"),
        "e": ("vm", "guest-region"),
        "f": (None, None),
    }
