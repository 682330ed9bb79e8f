"""Machines of a cluster: guests that were removed or do not answer, and pools."""

import numpy as np
import pytest

from gpufleet.fleet.facts.metrics import FACT_METRICS
from gpufleet.fleet.facts.newest import current_rows
from gpufleet.fleet.facts.nodes import ClusterMachines, cluster_machines
from gpufleet.fleet.facts.supplied import MachineInputs
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from tests.support.newest import newest_columns

NOW = 1_800_000_000 * NANOS


def sample(reader: str, lane: Lane, values: dict[str, str | int], age: float = 5.0) -> StoredSample:
    at = NOW - int(age * NANOS)
    return StoredSample(
        sample=Sample(view=None, reader=reader, lane=lane, measured_at=at, values={**values}), received_at=at
    )


def machines_of(samples: list[StoredSample], inputs: MachineInputs) -> ClusterMachines:
    newest = newest_columns({"unlisted": samples, "m": samples}, FACT_METRICS)
    return cluster_machines(newest, inputs, current_rows(newest, NOW, 120.0))


@pytest.mark.parametrize(
    ("state", "age", "expected"),
    [
        ("ok", 5.0, (False, True)),
        ("ok", 600.0, (False, False)),
        ("guest_unreachable", 5.0, (False, False)),
        ("removed", 5.0, (True, False)),
        ("removed", 90000.0, (True, False)),
    ],
)
def test_state_of_a_guest_decides_what_is_expected_of_it(state: str, age: float, expected: tuple[bool, bool]) -> None:
    inputs = MachineInputs(machines=["m"], retired=[False], hypervisors=["host"])
    found = machines_of([sample("guests", Lane.FAST, {"guest_state": state}, age)], inputs)
    assert (bool(found.is_retired[0]), bool(found.is_answering[0])) == expected


def test_node_is_expected_without_a_guest_state() -> None:
    found = machines_of([], MachineInputs(machines=["m", "n"], retired=[False, True], hypervisors=[None, None]))
    assert (found.is_retired.tolist(), found.is_answering.tolist()) == ([False, True], [True, True])


def test_pool_is_the_instance_type_or_the_product() -> None:
    product = [sample("host", Lane.STATIC, {"host_product_name": "DGX"})]
    one = MachineInputs(machines=["m"], retired=[False], hypervisors=[None])
    assert machines_of(product, one).pools == ["DGX"]
    other = MachineInputs(machines=["m", "n"], retired=[False] * 2, hypervisors=[None] * 2, pools=["p5.48xlarge", None])
    assert machines_of(product, other).pools == ["p5.48xlarge", None]


def test_cells_of_a_machine_that_is_not_listed_are_missing() -> None:
    found = machines_of([], MachineInputs(machines=["m"], retired=[False], hypervisors=[None]))
    assert np.array_equal(found.of(np.array([5.0]), np.array([0, 1])), [np.nan, 5.0], equal_nan=True)
