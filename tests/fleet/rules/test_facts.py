"""Tables of facts: missing inputs, wrong tables, parents and retired subjects."""

import numpy as np
import pytest

from gpufleet.fleet.rules.facts import NO_ROW, FactTable, FleetFacts
from gpufleet.model.finding import RuleScope

DEVICE, MACHINE, CLUSTER = RuleScope.DEVICE, RuleScope.MACHINE, RuleScope.CLUSTER


def test_missing_input_is_nan() -> None:
    table = FactTable(DEVICE, ("a", "b"), {"lost": [1, None]})
    assert np.array_equal(table.column("lost"), [1, np.nan], equal_nan=True)
    assert np.isnan(table.column("hung")).all()
    assert (table.row("b"), table.row("c")) == (1, None)


def test_table_is_independent_of_the_given_column() -> None:
    column = np.zeros(1)
    table = FactTable(DEVICE, ("a",), {"lost": column})
    column[0] = 1
    assert table.column("lost").tolist() == [0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"columns": {"unknown_input": [0]}},
        {"columns": {"lost": [0, 0]}},
        {"texts": {"unknown_text": [""]}},
        {"texts": {"xid_codes": []}},
        {"parents": {CLUSTER: [0]}},
        {"parents": {MACHINE: [0, 0]}},
        {"retired": [False, False]},
    ],
)
def test_wrong_table_is_rejected(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"scope device|one per key"):
        FactTable(DEVICE, ("a",), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [1, -2])
def test_parent_outside_its_table_is_rejected(row: int) -> None:
    devices = FactTable(DEVICE, ("a",), parents={MACHINE: [row]})
    with pytest.raises(ValueError, match="scope machine"):
        FleetFacts.of(FactTable(MACHINE, ("m",)), devices)


def test_two_tables_of_a_scope_are_rejected() -> None:
    with pytest.raises(ValueError, match="same scope"):
        FleetFacts.of(FactTable(DEVICE), FactTable(DEVICE))


def test_parts_of_a_retired_subject_are_retired() -> None:
    facts = FleetFacts.of(
        FactTable(CLUSTER, ("c", "d"), retired=[True, False]),
        FactTable(MACHINE, ("c/1", "d/1", "d/2"), parents={CLUSTER: [0, 1, 1]}, retired=[False, False, True]),
        FactTable(DEVICE, ("c/1/a", "d/1/a", "d/2/a", "x"), parents={MACHINE: [0, 1, 2, NO_ROW]}),
        FactTable(RuleScope.SENDER, ("c/s", "d/s"), parents={CLUSTER: [0, 1], MACHINE: [NO_ROW, 2]}),
    )
    retired = facts.retired()
    assert retired[MACHINE].tolist() == [True, False, True]
    assert retired[DEVICE].tolist() == [True, False, True, False]
    assert retired[RuleScope.SENDER].tolist() == [True, True]
