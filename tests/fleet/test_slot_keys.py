"""Keys of the GPU in a PCI slot: replaced GPUs, unknown UUIDs, and reports of several readers."""

from collections.abc import Sequence

import pytest

from gpufleet.fleet.slot_keys import REPORT_WINDOW_SECONDS, KeyReport, SlotKeys, slot_keys
from gpufleet.model.machine import PCI_READER
from gpufleet.model.time import NANOS

NOW = 1_800_000_000 * NANOS
WINDOW = REPORT_WINDOW_SECONDS

Report = tuple[str, str, float]
"""Key (`pci` for the address), reader (`pci` for a listing of the bus), and age in seconds."""


def report(key: str, reader: str, age: float) -> KeyReport:
    at = NOW - int(age * NANOS)
    return KeyReport(key, key != "pci", reader, reader == PCI_READER, at, at)


CASES: dict[str, tuple[Sequence[Report], str, set[tuple[str, str]]]] = {
    "another reader knows the UUID": (
        [("pci", "nvml", 0), ("A", "dcgm", 5)],
        "A",
        {("pci", "nvml"), ("A", "dcgm")},
    ),
    "an older loss is of the GPU that an exporter names later": (
        [("pci", "nvml", 5), ("A", "exporter", 0)],
        "A",
        {("pci", "nvml"), ("A", "exporter")},
    ),
    "the reader of the loss names a GPU": (
        [("pci", "nvml", 5), ("A", "nvml", 0), ("A", "exporter", 3)],
        "A",
        {("A", "nvml"), ("A", "exporter")},
    ),
    "the reader of the UUID no longer knows it": (
        [("pci", "nvml", 0), ("A", "nvml", 5), ("A", "exporter", 3)],
        "A",
        {("pci", "nvml"), ("A", "exporter")},
    ),
    "no other reader knows the UUID": ([("pci", "nvml", 0), ("A", "nvml", 5)], "pci", {("pci", "nvml")}),
    "both keys in one pass": ([("pci", "events", 0), ("A", "events", 0)], "A", {("A", "events")}),
    "the UUID was reported too long ago": (
        [("pci", "nvml", 0), ("A", "dcgm", WINDOW + 1)],
        "pci",
        {("pci", "nvml")},
    ),
    "the address was reported too long ago": (
        [("pci", "nvml", WINDOW + 1), ("A", "dcgm", 0)],
        "A",
        {("A", "dcgm")},
    ),
    "the loss is of the newest of two GPUs": (
        [("pci", "nvml", 0), ("A", "dcgm", 20), ("B", "exporter", 10)],
        "B",
        {("pci", "nvml"), ("B", "exporter")},
    ),
    "the bus lists it for no reader": ([("pci", PCI_READER, 0), ("A", "dcgm", 5)], "pci", {("pci", PCI_READER)}),
    "the bus listed it before": ([("pci", PCI_READER, 5), ("A", "dcgm", 0)], "A", {("A", "dcgm")}),
}


@pytest.mark.parametrize("case", CASES)
def test_reports_about_the_present_gpu_of_a_slot(case: str) -> None:
    reports, key, about = CASES[case]
    for ordered in (reports, reports[::-1]):
        assert slot_keys([report(*one) for one in ordered]) == SlotKeys(key, frozenset(about))
