"""The page on the simulated fleet says of each fault what the program says."""

from pathlib import Path

from gpufleet.simulate.fleet.faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "simulate.md"


def test_every_fault_is_on_the_page_in_the_program_s_words() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for kind, row in FAULTS.items():
        (line,) = [line for line in rows if line.startswith(f"| `{kind}`")]
        assert row.happens in line
        assert row.expected in line
