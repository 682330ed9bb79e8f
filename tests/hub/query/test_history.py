"""Time windows of history queries, and series of several machines."""

import pytest

from gpufleet.hub.query.history import (
    InvalidQueryError,
    SeriesPart,
    SeriesWindow,
    check_parts,
    make_window,
    series_answer,
    source_intervals,
)
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.stored.samples import StoredSeries
from gpufleet.model.time import LATEST, NANOS, to_datetime
from gpufleet.model.view import Scope

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


def bare_metal() -> Allocation:
    spec = AllocationSpec(kind=AllocationKind.BARE_METAL, target=Target(cluster="c", machine="m"))
    return Allocation(id="a", generation=1, spec=spec, created_at=to_datetime(0))


def test_parts_of_one_window_fill_each_other() -> None:
    """A virtual machine was read by two hosts one after the other: its own values form one series."""
    window = make_window(0, 120 * NANOS, 60 * NANOS)
    parts = [
        SeriesPart(
            "c/m",
            None,
            window,
            StoredSeries(points={(None, "host_load_1m"): [(at, value)]}, resolution=Resolution.RAW),
            Provenance.SLICE_GUEST,
        )
        for at, value in ((0, 1.0), (60 * NANOS, 2.0))
    ]
    spec = AllocationSpec(kind=AllocationKind.GPU_SLICE, target=Target(cluster="c", vm_uuid="u"))
    allocation = Allocation(id="a", generation=1, spec=spec, created_at=to_datetime(0))
    (series,) = series_answer(allocation, parts, window).series
    assert [point.value for point in series.points] == [1.0, 2.0]


def test_series_of_held_devices_have_no_host_and_their_scope() -> None:
    window = make_window(0, 60 * NANOS, 60 * NANOS)
    points: dict[tuple[str | None, str], list[tuple[int, Value]]] = {
        (view, "gpu_power_watts"): [(0, 1.0)] for view in ("gpu/GPU-1", "gpu/GPU-2", None)
    }
    parts = [
        SeriesPart(
            "c/m",
            frozenset(("gpu/GPU-1",)),
            window,
            StoredSeries(points=points, resolution=Resolution.RAW),
            Provenance.HOST_LOCAL_PROBE,
            scope=Scope.SHARED_DEVICE,
            of_host=False,
        )
    ]
    spec = AllocationSpec(kind=AllocationKind.KUBERNETES_POD, target=Target(cluster="c", pod_uid="u"))
    allocation = Allocation(id="a", generation=1, spec=spec, created_at=to_datetime(0))
    (series,) = series_answer(allocation, parts, window).series
    assert (series.device, series.scope) == ("c/m/gpu/GPU-1", Scope.SHARED_DEVICE)


def test_gap_has_the_reason_of_the_part_that_it_is_in() -> None:
    """A reason at an instant with a value of another part, or outside the allocation's time, is not shown."""
    window = make_window(0, 180 * NANOS, 60 * NANOS)
    of, lost = ("gpu/GPU-1", "gpu_power_watts"), {at * NANOS: Reason.GPU_LOST for at in (60, 120, 180)}
    stored = StoredSeries(points={of: [(0, 1.0)]}, resolution=Resolution.RAW, absences={of: lost})
    filled = StoredSeries(points={of: [(60 * NANOS, 2.0)]}, resolution=Resolution.RAW)
    parts = [SeriesPart("c/m", None, window, one, Provenance.HOST_LOCAL_PROBE) for one in (stored, filled)]
    (series,) = series_answer(bare_metal(), parts, window).series
    assert [(point.value, point.absent) for point in series.points] == [(1.0, None), (2.0, None), (None, "gpu_lost")]


def test_time_of_a_device_without_any_value_is_a_gap() -> None:
    early, late = (SeriesWindow(at * NANOS, (at + 60) * NANOS, 60 * NANOS) for at in (0, 60))
    points: dict[tuple[str | None, str], list[tuple[int, Value]]] = {("gpu/GPU-1", "gpu_power_watts"): [(0, 1.0)]}
    held = frozenset(("gpu/GPU-1",))
    parts = [
        SeriesPart(
            "c/m", held, early, StoredSeries(points=points, resolution=Resolution.RAW), Provenance.HOST_LOCAL_PROBE
        ),
        SeriesPart("c/m", held, late, StoredSeries(points={}, resolution=Resolution.RAW), Provenance.IMPORTED),
    ]
    answer = series_answer(bare_metal(), parts, make_window(0, 120 * NANOS, 60 * NANOS))
    (series,) = answer.series
    assert [point.value for point in series.points] == [1.0, None]
    assert answer.source is Provenance.IMPORTED
    assert [(one.source, one.start, one.end) for one in answer.sources] == [
        (Provenance.HOST_LOCAL_PROBE, to_datetime(0), to_datetime(60 * NANOS)),
        (Provenance.IMPORTED, to_datetime(60 * NANOS), to_datetime(120 * NANOS)),
    ]


def test_adjacent_intervals_of_one_source_are_one() -> None:
    stored = StoredSeries(points={}, resolution=Resolution.RAW)
    parts = [
        SeriesPart(machine, None, SeriesWindow(at * NANOS, (at + 60) * NANOS, 60 * NANOS), stored, Provenance.IMPORTED)
        for machine, at in (("c/m", 0), ("c/m", 60), ("c/m", 180), ("c/n", 240))
    ]
    found = [(one.machine, one.start.timestamp(), one.end.timestamp()) for one in source_intervals(parts)]
    assert found == [("c/m", 0, 120), ("c/m", 180, 240), ("c/n", 240, 300)]


@pytest.mark.parametrize(("parts", "devices", "field"), [(513, 1, "start"), (1, 2_000_001, "step"), (512, 3906, None)])
def test_too_many_parts_or_points_are_rejected(parts: int, devices: int, field: str | None) -> None:
    every = [(0, NANOS, devices)] * parts
    if field is None:
        check_parts(every, 1, NANOS)
        return
    with pytest.raises(InvalidQueryError) as error:
        check_parts(every, 1, NANOS)
    assert error.value.field == field
