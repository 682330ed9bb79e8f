"""Inputs of usage: instance type and region of units over time."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

from gpufleet.fleet.cluster_nodes import NodeMatch
from gpufleet.fleet.usage.units import PhysicalUnit, UnitPlacement
from gpufleet.hub.query.usage_inputs import place_units
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.kubernetes import ClusterNode
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.readings import StoredText
from tests.fakes.store import MemoryStore

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
TEXTS = {
    ("m1", "host_instance_type"): [(10, "p5")],
    ("m1", "host_cloud_region"): [(10, "eu-1")],
    ("m2", "host_instance_type"): [(10, "p4")],
    ("g1", "host_instance_type"): [(10, "vm")],
}


class Joins:
    """Kubernetes nodes of machines, by machine id."""

    def __init__(self, **nodes: ClusterNode) -> None:
        self._nodes = nodes

    def nodes(self, machines: Sequence[MachineRecord]) -> dict[str, tuple[NodeMatch, int]]:
        return {one.id: (NodeMatch(node=self._nodes[one.id]), 1) for one in machines if one.id in self._nodes}


class Texts(MemoryStore):
    """Store with the texts of `TEXTS`."""

    def texts_of_machines(self, cluster: str, machines: Sequence[str], metric: str) -> tuple[StoredText, ...]:
        return tuple(
            StoredText(machine=machine, view="", reader="host", at=at, text=text)
            for machine in machines
            for at, text in TEXTS.get((machine, metric), ())
        )


def record(id_: str, **fields: Any) -> MachineRecord:
    """Return a machine whose present type and region are other ones than those that its texts have."""
    machine = Machine(name=id_, instance_type="later", region="later", **fields)
    return MachineRecord(id=id_, cluster="c", machine=machine, sender=id_, first_seen=AT, last_seen=AT)


def test_unit_has_the_place_of_its_host_by_report_or_label() -> None:
    """A label counts from the creation of the node on, and only for what the machine does not report."""
    records = [*map(record, ("m1", "m2", "m3", "m4")), record("g1", kind=MachineKind.GUEST)]
    node = ClusterNode(uid="u", name="n", instance_type="labelled", region="eu-2", created=5)
    units = {
        name: PhysicalUnit("c", name, tuple((machine, "gpu/0") for machine in machines), None, {})
        for name, machines in {
            "a": ["m1"],
            "b": ["m2"],
            "c": ["m3"],
            "d": ["g1", "m1"],
            "e": ["g1"],
            "f": [],
            "g": ["m4"],
        }.items()
    }
    by_id = {one.id: one for one in records}
    joins = Joins(m2=node, m3=node, m4=ClusterNode(uid="v", name="o", instance_type="labelled"))
    place_units(units.values(), by_id, Texts(), joins, {})  # type: ignore[arg-type]
    unknown = UnitPlacement(0, None, None)
    assert {name: unit.placements for name, unit in units.items()} == {
        "a": (unknown, UnitPlacement(10, "p5", "eu-1")),
        "b": (unknown, UnitPlacement(5, None, "eu-2"), UnitPlacement(10, "p4", "eu-2")),
        "c": (unknown, UnitPlacement(5, "labelled", "eu-2")),
        "d": (unknown, UnitPlacement(10, "p5", "eu-1")),
        "e": (unknown, UnitPlacement(10, "vm", None)),
        "f": (unknown,),
        "g": (unknown,),
    }


def test_units_without_machines_have_no_place() -> None:
    unit = PhysicalUnit("c", "u", (), None, {})
    place_units([unit], {}, MemoryStore(), Joins(), {})  # type: ignore[arg-type]
    assert unit.placements == ()
