"""Simulated fleet against a hub that rejects requests."""

import asyncio
import time
from types import TracebackType
from typing import Self

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.delivery.post import HubAnswer
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import AgentTiming
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.posting import BUNDLED, ORDERED, SEPARATE, SendMode
from gpufleet.simulate.fleet.run import FleetRun

START = 1_795_000_000 * NANOS
RETRY_AFTER = 0.3


class Hub:
    """Hub that answers 503 to the first `busy` posts and records accepted batches in order."""

    def __init__(self, busy: int = 0) -> None:
        self.busy = busy
        self.taken: list[tuple[str, str, int]] = []
        self.turned_away_until = 0.0
        self.posted = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    async def post(self, body: bytes) -> HubAnswer:
        return (await self.post_bundle([body]))[0]

    async def post_bundle(self, bodies: list[bytes]) -> list[HubAnswer]:
        assert time.monotonic() >= self.turned_away_until, "posted before Retry-After elapsed"
        await asyncio.sleep(0)
        self.posted.set()
        if self.busy:
            self.busy -= 1
            if self.busy == 0:  # all concurrent posts have been answered
                self.turned_away_until = time.monotonic() + RETRY_AFTER * 0.99
            return [HubAnswer(503, "overloaded", RETRY_AFTER, "overloaded")] * len(bodies)
        for body in bodies:
            batch = decode(body)
            self.taken.append((batch.sender, batch.epoch, batch.seq))
        return [HubAnswer(200, "accepted")] * len(bodies)


async def ran(hub: Hub, manner: SendMode, nodes: int = 3) -> FleetRun:
    fleet = Fleet(FleetSpec(nodes=nodes, gpus=1))
    run = FleetRun(fleet, AgentTiming(start=START, interval=30), speed=1e6, seconds=300)
    await run.run({"sim-1": hub}, manner)
    return run


@pytest.mark.parametrize("manner", [SEPARATE, BUNDLED, ORDERED])
async def test_busy_hub_gets_each_batch_once_after_retry_after(manner: SendMode) -> None:
    hub = Hub(busy=manner.connections)
    summary = (await ran(hub, manner)).summary
    assert (summary.made, summary.acknowledged, summary.waiting) == (30, 30, 0)
    assert summary.retries >= manner.connections
    assert sorted(seq for _, _, seq in hub.taken) == sorted([*range(1, 11)] * 3)
    assert len({(sender, seq) for sender, _, seq in hub.taken}) == 30
    assert summary.error == ""


async def test_ordered_mode_keeps_the_order() -> None:
    hub = Hub(busy=1)
    await ran(hub, ORDERED, nodes=1)
    assert [seq for _, _, seq in hub.taken] == [*range(1, 11)]


async def test_newest_batch_is_sent_before_the_backlog() -> None:
    hub = Hub()
    await ran(hub, SendMode(connections=1), nodes=1)  # all batches exist before the first is sent
    assert [seq for _, _, seq in hub.taken] == [*range(10, 0, -1)]


async def test_stop_ends_the_run_against_an_overloaded_hub() -> None:
    hub = Hub(busy=10**9)
    run = FleetRun(Fleet(FleetSpec(nodes=2, gpus=1)), AgentTiming(start=START, at_once=True), seconds=10)
    running = asyncio.create_task(run.run({"sim-1": hub}))
    await hub.posted.wait()
    run.stop()
    summary = await asyncio.wait_for(running, 60)
    assert (summary.made, summary.acknowledged, summary.waiting) == (2, 0, 2)
    assert "overloaded" in summary.error


async def test_finite_run_gives_up_on_an_overloaded_hub() -> None:
    for nodes, speed, seconds in ((2, 1.0, 10), (3000, 1e6, 3600)):  # all batches created; waiting for space
        fleet = Fleet(FleetSpec(nodes=nodes, gpus=1))
        timing = AgentTiming(start=START, at_once=True)
        run = FleetRun(fleet, timing, speed=speed, seconds=seconds, give_up_seconds=0.2)
        summary = await run.run({"sim-1": Hub(busy=10**9)}, SEPARATE)
        assert summary.waiting >= nodes
        assert summary.acknowledged == 0
        assert summary.stalled_seconds >= 0.2


async def test_slow_hub_is_waited_for() -> None:
    hub = Hub(busy=1)
    fleet = Fleet(FleetSpec(nodes=3, gpus=1))
    run = FleetRun(
        fleet, AgentTiming(start=START, interval=30), speed=1e6, seconds=300, give_up_seconds=RETRY_AFTER * 5
    )
    summary = await run.run({"sim-1": hub}, ORDERED)
    assert (summary.waiting, summary.stalled_seconds) == (0, 0.0)
