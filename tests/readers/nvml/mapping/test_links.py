"""Readings of links by the driver's answers."""

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value
from gpufleet.readers.nvml.mapping.links import ROWS
from gpufleet.readers.nvml.mapping.row import NO_MODES, read
from gpufleet.readers.nvml.protocol import CallResult

UP, DOWN = [0, 1], [0, 0]
(ACTIVE,) = (row for row in ROWS if row.metric == "gpu_nvlinks_active")


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([UP, DOWN, UP], 2),
        ([UP, [999, None], UP], Reason.DRIVER_ERROR),
        ([[4, None], [15, None], UP], Reason.GPU_LOST),
        ([[3, None], [10, None]], Reason.TIMEOUT),
        ([UP, 1], Reason.INVALID_VALUE),
    ],
)
def test_count_of_links_that_are_up_has_the_worst_reason(states: list[object], found: Value | Reason) -> None:
    value = read(ACTIVE, CATALOGUE[ACTIVE.metric], CallResult(0, states), NO_MODES)
    assert (value.reason if isinstance(value, Absent) else value) == found
