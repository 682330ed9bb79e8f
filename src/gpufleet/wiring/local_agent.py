"""An agent inside a command: reads this machine repeatedly, without a listener, a hub or a state of its own."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from gpufleet.agent.agent import Agent
from gpufleet.agent.collect.release import Release, ReleaseFolder
from gpufleet.config.agent import AgentConfig, HubClientConfig
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot
from gpufleet.runtime import SystemClock
from gpufleet.wiring.holders import make_holders
from gpufleet.wiring.readers import RELEASABLE_READERS, capabilities, has_binding, lane_overrides, make_readers
from gpufleet.wiring.snapshot import intervals

FIRST_PASS_SECONDS = 20.0
"""Time to wait for the first pass of each reader. A reader that takes longer is absent from the first snapshots."""

_POLL_SECONDS = 0.02


class _ReleaseRequests(ReleaseFolder):
    """The operator's requests to release devices. This process follows them; the answer is the running agent's."""

    def answer(self, release: Release) -> None:
        return

    def answered(self) -> Release | None:
        return None

    def retract(self) -> None:
        return


@contextlib.asynccontextmanager
async def running_local_agent(
    config: AgentConfig, fast_seconds: float
) -> AsyncIterator[Callable[[], Awaitable[Snapshot]]]:
    """Read this machine while the context is open; yield a function that returns the newest snapshot.

    Virtual machines are not read from inside. An agent on this machine is not affected.

    Args:
        config: of the agent; hub, listener and state folder are not used.
        fast_seconds: interval of the fast lane.
    """
    clock = SystemClock()
    config = msgspec.structs.replace(config, hub=HubClientConfig())
    lanes = {**intervals(config), Lane.FAST: fast_seconds}
    readers = make_readers(config.readers, clock)
    agent = Agent(
        readers,
        intervals=lanes,
        machine=Machine(name=config.node or socket.gethostname()),
        name=config.node,
        clock=clock,
        pages=AgentPages(config.metrics.dialect_names),
        delivery=None,
        capabilities=capabilities(config.readers, binding=has_binding()),
        release=_ReleaseRequests(config.folder, clock.now_ns),
        releasable=RELEASABLE_READERS & {reader.name for reader, _ in readers},
        holders=make_holders(config, clock, saves=False),
        paces=lane_overrides(config.readers, lanes),
    )
    task = asyncio.create_task(agent.run(), name="local agent")
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PASS_SECONDS):
                while agent.missing and not task.done():  # noqa: ASYNC110 - the agent has no event for it
                    await asyncio.sleep(_POLL_SECONDS)
        yield functools.partial(_snapshot, agent, task)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _snapshot(agent: Agent, task: asyncio.Task[None]) -> Snapshot:
    if task.done():
        task.result()  # raises why the agent ended
    return await agent.snapshot()
