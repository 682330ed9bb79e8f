"""Keys of the GPU in a PCI slot: replaced GPUs, unknown UUIDs, and reports of several readers."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from gpufleet.fleet.slot_keys import REPORT_WINDOW_SECONDS, KeyReport, SlotKeys, slot_keys
from gpufleet.model.machine import PCI_READER
from gpufleet.model.time import NANOS

NOW = 1_800_000_000 * NANOS
WINDOW = REPORT_WINDOW_SECONDS


class Report(NamedTuple):
    """Report of a reader (`pci` for a listing of the bus) about a key (`pci` for the address).

    Attributes:
        age, receipt: seconds since its measurement, and since its receipt if that is another time.
        has_ended: whether it only reports the end of series.
    """

    key: str
    reader: str
    age: float
    receipt: float | None = None
    has_ended: bool = False


def report(one: Report) -> KeyReport:
    measured_at = NOW - int(one.age * NANOS)
    received_at = measured_at if one.receipt is None else NOW - int(one.receipt * NANOS)
    order = measured_at, not one.has_ended, received_at
    return KeyReport(one.key, one.key != "pci", one.reader, one.reader == PCI_READER, *order)


CASES: dict[str, tuple[Sequence[tuple[str, str, float] | Report], str, set[tuple[str, str]]]] = {
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
    "a backlog from before the loss": ([("pci", "nvml", 5), Report("A", "nvml", 90, 0)], "pci", {("pci", "nvml")}),
    "a backlog from before the recovery": ([("A", "nvml", 5), Report("pci", "nvml", 90, 0)], "A", {("A", "nvml")}),
    "a backlog from before a swap": ([("B", "nvml", 5), Report("A", "dcgm", 90, 0)], "B", {("B", "nvml")}),
    "the series of the UUID end": (
        [("pci", "exporter", 0), Report("A", "exporter", 0, has_ended=True)],
        "pci",
        {("pci", "exporter")},
    ),
    "the series of the first GPU end": (
        [("A", "exporter", 0), Report("B", "exporter", 0, has_ended=True)],
        "A",
        {("A", "exporter")},
    ),
    "the series of the UUID end after the address": (
        [("pci", "exporter", 5), Report("A", "exporter", 0, has_ended=True)],
        "A",
        {("A", "exporter")},
    ),
    "the bus listed it before": ([("pci", PCI_READER, 5), ("A", "dcgm", 0)], "A", {("A", "dcgm")}),
}


@pytest.mark.parametrize("case", CASES)
def test_reports_about_the_present_gpu_of_a_slot(case: str) -> None:
    reports, key, about = CASES[case]
    for ordered in (reports, reports[::-1]):
        assert slot_keys([report(Report(*one)) for one in ordered]) == SlotKeys(key, frozenset(about))
