"""A single collection of all readers, for commands that read this machine once."""

import asyncio
from collections.abc import Mapping, Sequence

from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import FIRST_PASS_ORDER, AgentState, Outcome
from gpufleet.agent.events.timeline import Timeline, status_before
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader

SHARE_SECONDS = 0.5
"""Pause between the two fast passes of readers that measure shares of time."""


async def read_once(
    readers: Sequence[tuple[Reader, float]],
    *,
    intervals: Mapping[Lane, float],
    twice: frozenset[str],
    clock: Clock,
    machine: Machine,
    name: str | None = None,
) -> AgentState:
    """Run one pass of every lane of every reader, all readers concurrently, then close the readers.

    Args:
        readers: each with its time limit for a pass in seconds.
        intervals: the lanes' intervals in seconds.
        twice: readers whose fast lane is read a second time, because shares of time need two readings.
        clock: wall and monotonic time.
        machine: identity evidence until a reader provides better.
        name: replaces the machine's host name.
    """
    outcomes: list[Outcome] = []
    loops = [
        ReaderLoop(reader, intervals=intervals, timeout_seconds=seconds, clock=clock, report=outcomes.append)
        for reader, seconds in readers
    ]
    state = AgentState(machine, [*(status for loop in loops for status in loop.statuses), status_before()], name=name)

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
    outcome = timeline.emit_pending(state, everything=True)
    if outcome is not None:
        state.apply(outcome)
    return state
