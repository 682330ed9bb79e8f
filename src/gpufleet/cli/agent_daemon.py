"""Start of the agent, without the modules of other commands."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from gpufleet.cli.daemon import run_until_stopped, tune_garbage_collector, wait_until_stopped
from gpufleet.cli.daemon_arguments import DaemonValue
from gpufleet.cli.logs import set_up_logs
from gpufleet.cli.startup import load_daemon
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.wiring.validation import check_agent

log = logging.getLogger(__name__)


def start_agent(values: Mapping[str, DaemonValue]) -> None:
    """Run an agent with these values of its options until it is stopped.

    Raises:
        ConfigError: if the configuration is invalid.
    """
    file, dialects = values.get("config"), values.get("dialect")
    settings = load_daemon(
        AgentConfig,
        check_agent,
        file=Path(str(file)) if file is not None else None,
        env_prefix=ENV_PREFIX,
        flags={
            "hub.url": values.get("hub"),
            "listen": values.get("listen"),
            "insecure_listen": values.get("insecure_listen"),
            "cluster": values.get("cluster"),
            "node": values.get("node"),
            "state": values.get("state"),
            "metrics.dialects": str(dialects).split(",") if dialects else None,
            "log_level": values.get("log_level"),
        },
        named={"hub.url": "--hub", "metrics.dialects": "--dialect"},
    )
    set_up_logs(settings.log_level)
    run_until_stopped(lambda stop: run_agent(settings, stop))


async def run_agent(config: AgentConfig, stop: asyncio.Event) -> None:
    """Run an agent until `stop` is set, or it fails."""
    from gpufleet.wiring.agent import running_agent

    async with running_agent(config) as running:
        tune_garbage_collector()
        log.info("agent listens at %s%s", running.url, f", pushes to {config.hub.url}" if config.hub.url else "")
        await wait_until_stopped(stop, running.task)
        log.info("agent is stopping")
