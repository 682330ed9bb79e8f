"""Search for the largest fleet that a hub sustains, on a simulated hub."""

import subprocess
import time
from typing import cast

import pytest

from benchmarks.bench_million import PARTS, Run, Step
from benchmarks.million_hub import MillionHub
from benchmarks.million_load import Done, Order

NODES = 125_000


class SimulatedRun(Run):
    """Run on a hub that sustains `holds` nodes."""

    def __init__(self, holds: int, seconds: float = 600.0) -> None:
        super().__init__(cast("MillionHub", None), cast("subprocess.Popen[str]", None), time.monotonic() + seconds)
        self.holds = holds
        self.tried: list[int] = []

    def step(self, name: str, order: Order) -> Step:
        self.tried.append(order.nodes)
        late = 0.0 if order.nodes <= self.holds else 9.0
        return Step(name=name, done=Done(late=late), stored=1.0, lag=0.0, used={}, resident=0.0, spans={})


@pytest.mark.parametrize("rate", [1.0, 500.0, 2_000.0, 90_000.0])
def test_largest_fleet_is_found_from_any_start(rate: float) -> None:
    run = SimulatedRun(NODES // 4)
    assert run.largest(NODES, rate) == ("250,000 GPUs, all known", "333,328 GPUs, all known")
    assert len(run.tried) == len(set(run.tried))


def test_hub_that_sustains_no_fleet_or_the_whole_fleet() -> None:
    assert SimulatedRun(0).largest(NODES, 2_000.0) == ("", f"{int(NODES * PARTS[0]) * 8:,} GPUs, all known")
    assert SimulatedRun(NODES).largest(NODES, 2_000.0) == ("1,000,000 GPUs, all known", "")


def test_search_stops_after_two_steps_without_time() -> None:
    run = SimulatedRun(NODES // 4, seconds=0.0)
    assert run.largest(NODES, 90_000.0) == ("", "750,000 GPUs, all known")
    assert run.tried == [125_000, 93_750]
