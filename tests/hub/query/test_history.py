"""Time windows of history queries, and series of several machines."""

import pytest

from gpufleet.hub.query.history import LATEST, InvalidQueryError, SeriesPart, make_window, series_answer
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.stored.samples import StoredSeries
from gpufleet.model.time import NANOS, to_datetime

DAY = 86_400 * NANOS


def test_window_starts_on_a_multiple_of_its_step() -> None:
    found = make_window(90 * NANOS, 300 * NANOS, 60 * NANOS)
    assert list(found.starts) == [60 * NANOS, 120 * NANOS, 180 * NANOS, 240 * NANOS]


@pytest.mark.parametrize(
    ("start", "end", "step", "field"),
    [
        (5, 5, NANOS, "end"),
        (0, LATEST + 1, 1000 * DAY, "end"),
        (0, DAY, NANOS - 1, "step"),
        (0, DAY, LATEST + 1, "step"),
        (0, DAY, NANOS, "step"),
    ],
)
def test_out_of_range_window_is_rejected(start: int, end: int, step: int, field: str) -> None:
    with pytest.raises(InvalidQueryError) as error:
        make_window(start, end, step)
    assert error.value.field == field


def test_last_representable_instant_can_be_queried() -> None:
    assert make_window(0, LATEST, LATEST).end == LATEST


def test_parts_of_one_window_fill_each_other() -> None:
    """A virtual machine was read by two hosts one after the other: its own values form one series."""
    window = make_window(0, 120 * NANOS, 60 * NANOS)
    parts = [
        SeriesPart(
            "c/m",
            None,
            window,
            StoredSeries(points={(None, "host_load_1m"): [(at, value)]}, resolution=Resolution.RAW),
        )
        for at, value in ((0, 1.0), (60 * NANOS, 2.0))
    ]
    spec = AllocationSpec(kind=AllocationKind.GPU_SLICE, target=Target(cluster="c", vm_uuid="u"))
    allocation = Allocation(id="a", generation=1, spec=spec, created_at=to_datetime(0))
    (series,) = series_answer(allocation, parts, window, Provenance.SLICE_GUEST).series
    assert [point.value for point in series.points] == [1.0, 2.0]
