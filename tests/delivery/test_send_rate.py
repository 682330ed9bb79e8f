"""Pacer: the send rate is constant, and unused time is not saved up."""

import pytest

from gpufleet.delivery.pacing import Pacer
from tests.fakes.clock import FakeClock


def test_pacer_keeps_its_rate_after_a_pause() -> None:
    clock = FakeClock()
    pace = Pacer(4, clock.monotonic)
    sent_at = []
    for _ in range(400):
        if pace.delay == 0:
            pace.step()
            sent_at.append(clock.monotonic())
        clock.advance(0.01)
    assert len(sent_at) == 16
    clock.advance(100)
    assert pace.delay == 0
    pace.step()
    assert pace.delay == pytest.approx(0.25)
