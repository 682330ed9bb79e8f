"""One look at everything, for a command that reads this machine and ends."""

import asyncio
from collections.abc import Mapping, Sequence

from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import FIRST_PASS_ORDER, Outcome, State
from gpufleet.agent.events.timeline import Timeline, status_before
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader

SHARE_SECONDS = 0.5
"""Between the two fast passes of readers that measure shares of time."""


async def read_once(
    readers: Sequence[tuple[Reader, float]],
    *,
    intervals: Mapping[Lane, float],
    twice: frozenset[str],
    clock: Clock,
    machine: Machine,
    name: str | None = None,
) -> State:
    """Make one pass of every lane of every reader, all readers at once, and close them.

    Args:
        readers: each with the seconds that a pass of it may take.
        intervals: seconds of each lane, as an agent would have them.
        twice: readers whose fast lane is read a second time, because shares of time need two readings.
        clock: the clocks.
        machine: evidence until a reader brings better.
        name: what to call the machine instead of its host name.
    """
    outcomes: list[Outcome] = []
    loops = [
        ReaderLoop(reader, intervals=intervals, timeout_seconds=seconds, clock=clock, report=outcomes.append)
        for reader, seconds in readers
    ]
    state = State(machine, [*(status for loop in loops for status in loop.statuses), status_before()], name=name)

    timeline = Timeline(clock)

    async def run(loop: ReaderLoop) -> None:
        try:
            for lane in FIRST_PASS_ORDER:
                if lane in loop.reader.lanes:
                    state.apply(timeline.take(await loop.run_pass(lane), state))
            if loop.reader.name in twice:
                await asyncio.sleep(SHARE_SECONDS)
                state.apply(timeline.take(await loop.run_pass(Lane.FAST), state))
        finally:
            await loop.reader.close()

    async with asyncio.TaskGroup() as tasks:
        for loop in loops:
            tasks.create_task(run(loop))
    settled = timeline.settle(state, everything=True)
    if settled is not None:
        state.apply(settled)
    return state
