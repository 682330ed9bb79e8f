"""Time windows of history queries."""

import pytest

from gpufleet.hub.query.history import LATEST, InvalidQueryError, make_window
from gpufleet.model.time import NANOS

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
