"""Screening: the columns of many batches are checked at once."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.flush.normalise import normalise
from gpufleet.hub.flush.screening import SuspectColumn, screen
from gpufleet.model.absence import Reason
from gpufleet.model.wire.batch import Cell, WireAbsence, WireBatch
from tests.hub.flush.test_normalise import NOW, batch_of

METRICS = (
    "gpu_power_watts",
    "gpu_utilization_ratio",
    "gpu_memory_used_bytes",
    "gpu_state",
    "gpu_name",
    "gpu_fan_speed_ratio",  # has dimensions: not a metric of samples
    "made_up",
    "gpu_bar1_used_bytes",
    "gpu_power_instant_watts",
)

on_the_wire: st.SearchStrategy[Cell] = st.one_of(
    st.none(), st.integers(-1, 2), st.floats(-1, 2), st.sampled_from([math.nan, "ok", "lost", "no state"])
)


@st.composite
def batches(draw: st.DrawFn, cells: st.SearchStrategy[Cell] = on_the_wire) -> WireBatch:
    names = draw(st.sampled_from([METRICS, METRICS[:2], METRICS[2:4], METRICS[-2:]]))
    rows = draw(st.integers(1, 3))
    columns: dict[str, list[Cell]] = {name: draw(st.lists(cells, min_size=rows, max_size=rows)) for name in names}
    return batch_of(
        columns,
        view=draw(st.integers(-1, 2)),
        absences=[[WireAbsence("gpu_power_watts", Reason.TIMEOUT, "x")]],
        absence=draw(st.integers(-1, 0)),
    )


@given(st.lists(batches(st.one_of(on_the_wire, st.booleans())), min_size=1, max_size=5))
def test_screening_a_group_gives_the_same_result(group: list[WireBatch]) -> None:
    for batch, suspects in zip(group, screen(group), strict=True):
        together, alone = normalise(batch, NOW, suspects), normalise(batch, NOW)
        assert repr(together.batch.samples) == repr(alone.batch.samples)  # a NaN equals nothing
        assert together.batch.absences == alone.batch.absences
        assert together.invalid_values == alone.invalid_values
        assert together.unknown_metrics == alone.unknown_metrics


def test_suspect_columns_are_in_their_batch_order() -> None:
    gaps = batch_of({"gpu_power_watts": [None, None], "gpu_utilization_ratio": [None, 0.5]})
    bad = batch_of({"gpu_power_watts": [1.0, 1.0], "gpu_utilization_ratio": [7.0, 0.5]})
    _, (suspects,) = screen([bad, gaps])
    assert suspects == [SuspectColumn(0, values=False), SuspectColumn(1, values=True)]


def test_valid_columns_are_not_suspect() -> None:
    fine = batch_of({"gpu_power_watts": [1.0, 2], "gpu_state": ["ok", "lost"]})
    assert screen([fine, fine]) == [[()], [()]]


def test_only_the_column_of_an_invalid_value_is_suspect() -> None:
    fine = batch_of({"gpu_power_watts": [1.0], "gpu_utilization_ratio": [0.5]})
    bad = batch_of({"gpu_power_watts": [1.0], "gpu_utilization_ratio": [7.0]})
    other = batch_of({"gpu_power_watts": [1.0]})
    assert screen([fine, bad, other]) == [[[SuspectColumn(1, True)]], [[SuspectColumn(1, True)]], [()]]


def test_column_with_an_absence_is_suspect_in_its_batch_only() -> None:
    whole = batch_of({"gpu_power_watts": [1.0], "gpu_utilization_ratio": [0.5]})
    gap = batch_of({"gpu_power_watts": [None], "gpu_utilization_ratio": [0.5]})
    assert screen([whole, gap]) == [[[]], [[SuspectColumn(0, False)]]]


def test_metric_of_another_subject_is_screened() -> None:
    of_machine = batch_of({"gpu_power_watts": [1.0]}, view=-1)
    assert screen([of_machine]) == [[[SuspectColumn(0, True)]]]
