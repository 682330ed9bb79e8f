import datetime as dt

import pytest

from gpufleet.fleet.facts.kubernetes import LABEL, whole_gpus
from gpufleet.model.catalogue.kubernetes import PUBLISHED_GPUS
from gpufleet.model.declarations import DeclaredResource

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GPU = "nvidia_com_gpu"


def declared(
    resource: str, capacity: int | None, allocatable: int | None = None, *, reader: str = "r", minutes: int = 0
) -> DeclaredResource:
    at = AT + dt.timedelta(minutes=minutes)
    return DeclaredResource(
        resource=resource, capacity=capacity, allocatable=allocatable, reader=reader, measured_at=at, received_at=at
    )


@pytest.mark.parametrize(
    ("resources", "pci", "counts"),
    [
        ([], 8, (None, None)),
        ([declared(GPU, 8, 7)], 8, (8, 7)),
        ([declared(GPU, 8, 8)], 7, (8, 8)),  # a GPU fell off the bus
        ([declared(GPU, 32, 32)], 8, (None, None)),  # replicas
        ([declared(GPU, 8, 8), declared(LABEL, 4)], None, (None, None)),
        ([declared(GPU, 0, 0), declared("nvidia_com_mig-1g.10gb", 7, 7)], 8, (None, None)),
        ([declared(GPU, 8, 8), declared("nvidia_com_mig-1g.10gb", 0, 0)], 8, (8, 8)),
        ([declared(PUBLISHED_GPUS, 8), declared(GPU, 0, 0)], 8, (8, None)),
        ([declared(PUBLISHED_GPUS, 4), declared(GPU, 4, 4)], 8, (8, None)),  # each has GPUs of its own
        ([declared(PUBLISHED_GPUS, 8), declared(GPU, 8, 8)], 8, (8, None)),  # both have the same GPUs
        ([declared(PUBLISHED_GPUS, 2), declared(GPU, 4, 4)], 8, (6, None)),  # two GPUs are missing
        ([declared(PUBLISHED_GPUS, 4), declared(GPU, 4, 4), declared(LABEL, 8)], 7, (8, None)),
        ([declared(PUBLISHED_GPUS, 4), declared(GPU, 4, 4)], None, (None, None)),
        ([declared(PUBLISHED_GPUS, 4), declared(GPU, 16, 16)], 8, (None, None)),  # replicas
        ([declared(GPU, 4, 4), declared(GPU, 8, 8, reader="newer", minutes=1)], 8, (8, 8)),
    ],
)
def test_whole_gpus_of_a_node(
    resources: list[DeclaredResource], pci: int | None, counts: tuple[int | None, int | None]
) -> None:
    assert whole_gpus(resources, pci) == counts
