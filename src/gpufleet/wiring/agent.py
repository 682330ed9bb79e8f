"""The agent, put together from its configuration."""

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpufleet.agent.agent import Agent
from gpufleet.config.agent import AgentConfig, parse_listen
from gpufleet.exporters.agent_stats import render_agent_page
from gpufleet.model.machine import Machine
from gpufleet.ports import Clock
from gpufleet.wiring.clock import SystemClock
from gpufleet.wiring.once import intervals
from gpufleet.wiring.readers import make_readers

if TYPE_CHECKING:
    from gpufleet.agent.delivery import Delivery

CONCURRENT = 64
"""Requests and open connections at once."""

STOP_SECONDS = 2
"""How long stopping waits for answers under way."""


class RunningAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that runs.

    Attributes:
        host, port: where it answers; the port is the kernel's choice where the configuration says 0.
        task: ends only when the agent fails.
    """

    host: str
    port: int
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        """Root of its HTTP surface."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@contextlib.asynccontextmanager
async def running_agent(config: AgentConfig) -> AsyncIterator[RunningAgent]:
    """Run an agent while the context is open; leaving it stops the agent within a few seconds.

    Raises:
        GpufleetError: if it cannot listen.
        SpoolError: if a hub is configured and the spool cannot be opened.
    """
    # Imported here: a command that only reads this machine once does without the server.
    from gpufleet.web.agent import AgentApp
    from gpufleet.web.server import serve

    clock = SystemClock()
    name = config.node or socket.gethostname()
    host, port = parse_listen(config.listen)
    async with contextlib.AsyncExitStack() as stack:
        agent = Agent(
            make_readers(config.readers, clock),
            intervals=intervals(config),
            machine=Machine(name=name),
            name=config.node,
            clock=clock,
            render=render_agent_page,
            delivery=await _delivery(config, name, clock, stack),
        )
        bound = await stack.enter_async_context(
            serve(AgentApp(agent), host, port, concurrent=CONCURRENT, stop_seconds=STOP_SECONDS)
        )
        task = asyncio.create_task(agent.run(), name="agent")
        try:
            yield RunningAgent(host=host, port=bound, task=task)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _delivery(
    config: AgentConfig, sender: str, clock: Clock, stack: contextlib.AsyncExitStack
) -> "Delivery | None":
    if config.hub.url is None:
        return None
    # Imported here: an agent that pushes nowhere does without the HTTP client.
    from gpufleet.agent.delivery import Delivery
    from gpufleet.agent.outbox import Outbox
    from gpufleet.agent.push import Pusher
    from gpufleet.agent.refused import Refused
    from gpufleet.spool import Spool

    folder = Path(config.state, "agent")
    spool = await asyncio.to_thread(Spool.open, folder / "spool", max_bytes=config.spool.max_bytes)
    stack.callback(spool.close)
    outbox = Outbox(
        spool,
        cluster=config.cluster,
        sender=sender,
        heartbeat_seconds=config.hub.heartbeat_seconds,
        config_hash=hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:16],
        clock=clock,
    )
    pusher = Pusher(
        spool,
        url=config.hub.url,
        timeout_seconds=config.hub.timeout_seconds,
        refused=Refused(folder / "refused"),
        stats=outbox.stats,
        clock=clock,
    )
    return Delivery(outbox, pusher)
