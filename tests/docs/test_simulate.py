"""docs/simulate.md: faults and the example machine match the program."""

from pathlib import Path

from gpufleet.simulate.fleet.faults import FAULTS
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"


def test_every_fault_is_documented_as_in_the_program() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for kind, row in FAULTS.items():
        (line,) = [line for line in rows if line.startswith(f"| `{kind}`")]
        assert row.effect in line
        assert row.expected in line
        assert all(f"`{rule}`" in line for rule in row.findings)


def test_documented_virtual_machine_exists_in_the_fleet() -> None:
    machine = Fleet(FleetSpec(clusters=3, nodes=40)).node(1, 5).guests[0].machine
    assert machine.system_uuid is not None
    assert f"--target {machine.system_uuid}" in PAGE.read_text()
