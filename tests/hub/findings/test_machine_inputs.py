"""Inputs about machines: conflicts of identity that last."""

import datetime as dt

import msgspec
import numpy as np
import pytest

from gpufleet.hub.findings.machine_inputs import machine_inputs
from gpufleet.hub.findings.reports import NO_SENDER, MachineColumns
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.machine import Machine, MachineKind

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def record(
    id_: str, hypervisor: str | None = None, *, conflict: bool = True, machine_id: str | None = None
) -> MachineRecord:
    kind = MachineKind.NODE if hypervisor is None else MachineKind.GUEST
    return MachineRecord(
        id=id_,
        cluster="c",
        machine=Machine(name=id_, kind=kind, machine_id=machine_id),
        sender="s",
        first_seen=AT,
        last_seen=AT,
        conflict="a clone" if conflict else None,
        hypervisor_id=hypervisor,
    )


def with_evidence(id_: str, field: str, value: str) -> MachineRecord:
    one = record(id_)
    return msgspec.structs.replace(one, machine=msgspec.structs.replace(one.machine, **{field: value}))


def conflicts(records: list[MachineRecord], *gone: str) -> list[str]:
    """Return the machines with a conflict, and in brackets those with an unknown one; all except `gone` report."""
    count = len(records)
    machines = MachineColumns(
        records=records,
        sender=np.full(count, NO_SENDER),
        unseen=np.zeros(count),
        interval=np.full(count, 30.0),
        retired=np.zeros(count, bool),
        is_current=np.array([one.id not in gone for one in records]),
        is_late=np.zeros(count, bool),
        ahead=np.zeros(count),
    )
    inputs = machine_inputs(machines, [None] * count, lambda *_: None, is_queried=True)
    column = inputs.numbers("identity_conflict").tolist()
    ids = [f"({one.id})" if np.isnan(conflict) else one.id for one, conflict in zip(records, column, strict=True)]
    return [id_ for id_, conflict in zip(ids, column, strict=True) if conflict != 0]


@pytest.mark.parametrize("field", ["machine_id", "system_uuid", "instance_id", "k8s_node_uid"])
def test_conflict_lasts_while_both_machines_report(field: str) -> None:
    records = [with_evidence(id_, field, value) for id_, value in (("original", "x"), ("clone", "x"), ("other", "y"))]
    assert conflicts(records) == ["original", "clone"]
    assert conflicts(records, "clone") == conflicts(records, "original") == []
    assert conflicts(records, "original", "clone") == ["(original)", "(clone)"]
    assert conflicts([*records, with_evidence("third", field, "x")], "clone") == ["original", "third"]


def test_machine_without_a_recorded_conflict_has_none() -> None:
    assert conflicts([record("a", conflict=False, machine_id="x"), record("b", machine_id="x")]) == []


def test_guests_of_different_hypervisors_are_not_compared() -> None:
    records = [record("a", "h1", machine_id="x"), record("b", "h2", machine_id="x"), record("c", machine_id="x")]
    assert conflicts(records) == []
    assert conflicts([*records, record("d", "h1", machine_id="x")]) == ["a", "d"]


def test_two_agents_of_one_machine_are_no_conflict_of_machines() -> None:
    assert conflicts([record("a", machine_id="x")]) == []
