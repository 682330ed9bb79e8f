"""Source of a command's snapshot: this machine, or a running agent."""

import asyncio
import os
from pathlib import Path

from gpufleet.cli.fetch import Access, get
from gpufleet.cli.options import CommandError
from gpufleet.codecs.snapshot_json import decode_snapshot
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import load
from gpufleet.model.errors import WireError
from gpufleet.model.snapshot import Snapshot


def take_snapshot(agent: str | None, config: Path | None, access: Access) -> Snapshot:
    """Query the agent at the URL, or read this machine according to the agent's configuration.

    Raises:
        CommandError: if the agent does not return a snapshot.
        ConfigError: if the configuration is invalid.
    """
    if agent is not None:
        return fetch_snapshot(agent, access)
    from gpufleet.wiring.snapshot import snapshot_once

    settings = load(AgentConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={})
    return asyncio.run(snapshot_once(settings))


def fetch_snapshot(agent: str, access: Access) -> Snapshot:
    """Return the snapshot of the agent at the URL.

    Raises:
        CommandError: if it does not return one.
    """
    try:
        return decode_snapshot(get(agent, "/v1/snapshot", access))
    except WireError as error:
        raise CommandError(f"{agent} did not return a snapshot of this version: {error}") from error
