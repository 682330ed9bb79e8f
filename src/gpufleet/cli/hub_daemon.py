"""Start of the hub or relay, without the modules of other commands."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from gpufleet.cli.daemon import paused_garbage_collector, run_until_stopped, tune_garbage_collector, wait_until_stopped
from gpufleet.cli.daemon_arguments import DaemonValue
from gpufleet.cli.logs import set_up_logs
from gpufleet.cli.startup import load_daemon
from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.wiring.validation import check_hub

log = logging.getLogger(__name__)


def start_hub(values: Mapping[str, DaemonValue]) -> None:
    """Run a hub or relay with these values of its options until it is stopped.

    Raises:
        ConfigError: if the configuration is invalid.
    """
    file = values.get("config")
    settings = load_daemon(
        HubConfig,
        check_hub,
        file=Path(str(file)) if file is not None else None,
        env_prefix=ENV_PREFIX,
        flags={
            "listen": values.get("listen"),
            "insecure_listen": values.get("insecure_listen"),
            "state": values.get("state"),
            "store": values.get("store"),
            "relay.to": values.get("relay_to"),
            "log_level": values.get("log_level"),
        },
    )
    set_up_logs(settings.log_level)
    accept_data_loss = bool(values.get("accept_data_loss"))
    run_until_stopped(lambda stop: run_hub(settings, stop, accept_data_loss=accept_data_loss))


async def run_hub(config: HubConfig, stop: asyncio.Event, *, accept_data_loss: bool = False) -> None:
    """Run a hub until `stop` is set; see `running_hub` for `accept_data_loss`."""
    from gpufleet.wiring.hub import running_hub

    if config.relay.to is not None:
        await run_relay(config, stop)
        return
    async with contextlib.AsyncExitStack() as stack:
        with paused_garbage_collector():
            running = await stack.enter_async_context(running_hub(config, accept_data_loss=accept_data_loss))
            tune_garbage_collector(collects=False)
        log.info("hub listens at %s: /v1/nodes, /v1/gpus, /openapi.json, /metrics", running.url)
        log.info("state folder: %s", config.folder)
        await wait_until_stopped(stop, running.task)
        log.info("hub is stopping: flushing queued batches")


async def run_relay(config: HubConfig, stop: asyncio.Event) -> None:
    """Run a relay until `stop` is set."""
    from gpufleet.wiring.relay import running_relay

    async with running_relay(config) as running:
        tune_garbage_collector()
        log.info("relay listens at %s: /v1/senders, /metrics; forwards to %s", running.url, config.relay.to)
        await wait_until_stopped(stop, running.task)
        log.info("relay is stopping: forwarding queued batches")
