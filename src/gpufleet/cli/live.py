"""Repeated snapshots for a command: of this machine, or of a running agent."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from gpufleet.cli.fetch import Access
from gpufleet.cli.source import fetch_snapshot
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import load
from gpufleet.model.snapshot import Snapshot

SnapshotSource = Callable[[], Awaitable[Snapshot]]
"""Returns the newest snapshot; raises CommandError if there is none now."""


@contextlib.asynccontextmanager
async def open_snapshots(
    agent: str | None, config: Path | None, access: Access, seconds: float
) -> AsyncIterator[SnapshotSource]:
    """Yield a source of snapshots: the agent at the URL, or the readers of this machine, which run meanwhile.

    Args:
        agent: base URL, or None.
        config: the agent's configuration for reading this machine; None means its defaults.
        access: to the agent.
        seconds: interval at which snapshots are requested.

    Raises:
        ConfigError: if the configuration is invalid.
    """
    if agent is not None:
        yield lambda: asyncio.to_thread(fetch_snapshot, agent, access)
        return
    from gpufleet.wiring.local_agent import running_local_agent

    settings = load(AgentConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={})
    async with running_local_agent(settings, seconds) as snapshot:
        yield snapshot
