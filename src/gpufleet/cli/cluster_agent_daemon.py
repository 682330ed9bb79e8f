"""Start of the cluster collector, without the modules of other commands."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from gpufleet.cli.daemon import run_until_stopped, tune_garbage_collector, wait_until_stopped
from gpufleet.cli.daemon_arguments import DaemonValue
from gpufleet.cli.logs import set_up_logs
from gpufleet.cli.startup import load_daemon
from gpufleet.config.cluster import ENV_PREFIX, ClusterAgentConfig
from gpufleet.wiring.validation import check_cluster_agent

log = logging.getLogger(__name__)


def load_cluster_agent(values: Mapping[str, DaemonValue]) -> ClusterAgentConfig:
    """Return the configuration of a collector with these values of its options.

    Raises:
        ConfigError: if the configuration is invalid.
    """
    file = values.get("config")
    return load_daemon(
        ClusterAgentConfig,
        check_cluster_agent,
        file=Path(str(file)) if file is not None else None,
        env_prefix=ENV_PREFIX,
        flags={
            "hub.url": values.get("hub"),
            "api.kubeconfig": values.get("kubeconfig"),
            "listen": values.get("listen"),
            "insecure_listen": values.get("insecure_listen"),
            "cluster": values.get("cluster"),
            "replica": values.get("replica"),
            "state": values.get("state"),
            "log_level": values.get("log_level"),
        },
        named={"hub.url": "--hub", "api.kubeconfig": "--kubeconfig"},
    )


def start_cluster_agent(values: Mapping[str, DaemonValue]) -> None:
    """Run a collector with these values of its options until it is stopped.

    Raises:
        ConfigError: if the configuration is invalid.
    """
    settings = load_cluster_agent(values)
    set_up_logs(settings.log_level)
    run_until_stopped(lambda stop: run_cluster_agent(settings, stop))


async def run_cluster_agent(config: ClusterAgentConfig, stop: asyncio.Event) -> None:
    """Run a collector until `stop` is set, or it fails."""
    from gpufleet.wiring.cluster import running_cluster_agent

    async with running_cluster_agent(config) as running:
        tune_garbage_collector()
        pushes = f", pushes to {config.hub.url}" if config.hub.url else ""
        log.info("cluster-agent %s listens at %s%s", config.replica, running.url, pushes)
        await wait_until_stopped(stop, running.task)
        log.info("cluster-agent is stopping")
