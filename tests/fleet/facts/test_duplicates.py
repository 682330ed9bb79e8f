"""GPUs that several machines report: which reports contradict each other."""

from collections.abc import Sequence

import numpy as np
import pytest

from gpufleet.fleet.facts.duplicates import GpuReporters, machines_column
from gpufleet.fleet.facts.supplied import MachineInputs
from gpufleet.model.stored.readings import ViewColumns
from gpufleet.model.time import NANOS

NOW = 1_800_000_000 * NANOS
VIEW = "gpu/GPU-1"
INTERVAL = 30.0
SYSTEM = "4c4c4544-0000-0000-0000-000000000001"

Reports = Sequence[tuple[str, float]]
"""Machine and the age of its report in seconds."""


def inputs() -> MachineInputs:
    """Return two nodes, two guests of the first, a guest of the second, the node inside a guest, and a retired node."""
    machines = ["node", "other", "guest", "neighbour", "remote", "inside", "retired"]
    return MachineInputs(
        machines=machines,
        retired=[name == "retired" for name in machines],
        hypervisors=[None, None, "node", "node", "other", None, None],
        system_uuids=[None, None, SYSTEM, None, None, SYSTEM, None],
        interval_seconds=[INTERVAL] * len(machines),
    )


def counts(reports: Reports) -> dict[str, int]:
    """Return machine to the number of contradicting reports."""
    reporters = GpuReporters()
    reporters.add(inputs())
    found = reporters.contradictions(
        ViewColumns(
            cluster=["c"] * len(reports),
            machine=[machine for machine, _ in reports],
            view=[VIEW] * len(reports),
            received_at=[NOW - int(age * NANOS) for _, age in reports],
        ),
        NOW,
    )
    return {machine: number for (machine, _), number in found.items()}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        # a copied virtual machine, or an exporter that reports another host's GPUs
        ([("node", 5), ("other", 5)], {"node": 2, "other": 2}),
        ([("neighbour", 5), ("remote", 5)], {"neighbour": 2, "remote": 2}),
        # a guest has the GPU that its hypervisor reports, or reported
        ([("node", 5), ("guest", 5)], {"node": 1, "guest": 1}),
        # a node inside the guest reports it, too
        ([("guest", 5), ("inside", 5)], {"guest": 1, "inside": 1}),
        # what a guest claims causes a finding about guests only
        ([("other", 5), ("guest", 5)], {"other": 1, "guest": 2}),
        # a moved GPU: the old machine stops reporting it
        ([("node", 2 * INTERVAL + 1), ("other", 5)], {"node": 1, "other": 1}),
        ([("node", -2 * INTERVAL - 1), ("other", 5)], {"node": 1, "other": 1}),
        # retired and unknown machines
        ([("node", 5), ("retired", 5), ("unknown", 5)], {"node": 1, "retired": 1, "unknown": 1}),
    ],
)
def test_reports_that_contradict_are_counted(reports: Reports, expected: dict[str, int]) -> None:
    assert counts(reports) == expected


def test_column_has_gpus_with_a_uuid() -> None:
    found = machines_column(
        ["node", "node", "other"],
        [VIEW, "gpu/pci/0000:1b:00.0", "gpu/GPU-2"],
        np.array([True, False, True]),
        {("node", VIEW): 2},
    )
    assert np.array_equal(found, [2, np.nan, 1], equal_nan=True)
