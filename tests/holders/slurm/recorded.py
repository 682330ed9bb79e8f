"""Recorded answers of a real SLURM."""

from pathlib import Path

from gpufleet.holders.slurm.parse import parse_listing
from gpufleet.holders.slurm.records import ListedJob

FOLDER = Path(__file__).parents[2] / "data" / "slurm"
DELIMITER = "0123456789abcdef"
"""Delimiter of the recorded listing."""


def text(name: str) -> bytes:
    """Return a recorded answer."""
    return (FOLDER / f"{name}.txt").read_bytes()


def listing() -> dict[int, ListedJob]:
    """Return the recorded listing by job id."""
    return {job.id: job for job in parse_listing(text("listing"), DELIMITER)}


def plain(number: int, name: str, selector: str = "") -> ListedJob:
    """Return a listed job without account and wckey."""
    return ListedJob(number, selector or str(number), "(null)", "(null)", name)
