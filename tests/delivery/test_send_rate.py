import pytest

from gpufleet.delivery.pacing import Pacer
from tests.fakes.clock import FakeClock


def test_so_many_in_a_second_and_nothing_saved_up() -> None:
    clock = FakeClock()
    pace = Pacer(4, clock.monotonic)
    went = []
    for _ in range(400):
        if pace.delay == 0:
            pace.step()
            went.append(clock.monotonic())
        clock.advance(0.01)
    assert len(went) == 16
    clock.advance(100)
    assert pace.delay == 0
    pace.step()
    assert pace.delay == pytest.approx(0.25)
