"""`gpufleet hub`: runs a hub or a relay."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.daemon import run_until_stopped, tune_garbage_collector
from gpufleet.cli.logs import set_up_logs
from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.config.load import load

log = logging.getLogger(__name__)


def hub(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The hub's configuration (TOML).")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address to listen on [default: 127.0.0.1:8470].")
    ] = None,
    insecure_listen: Annotated[
        bool | None,
        typer.Option("--insecure-listen", help="Allow listening beyond loopback without TLS or tokens."),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of log, registry and embedded store.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="DSN", help="chdb:///FOLDER or clickhouse://HOST:PORT/DATABASE [default: embedded]."),
    ] = None,
    relay_to: Annotated[
        str | None, typer.Option(metavar="URL", help="Run as a relay: forward batches to this hub.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")
    ] = None,
) -> None:
    """Receive and store the batches of a fleet, and serve queries. Runs until stopped."""
    settings = load(
        HubConfig,
        file=config,
        env_prefix=ENV_PREFIX,
        env=os.environ,
        flags={
            "listen": listen,
            "insecure_listen": insecure_listen,
            "state": state,
            "store": store,
            "relay.to": relay_to,
            "log_level": log_level,
        },
    )
    set_up_logs(settings.log_level)
    run_until_stopped(lambda stop: run_hub(settings, stop))


async def run_hub(config: HubConfig, stop: asyncio.Event) -> None:
    """Run a hub until `stop` is set."""
    from gpufleet.wiring.hub import running_hub

    if config.relay.to is not None:
        await run_relay(config, stop)
        return
    async with running_hub(config) as running:
        tune_garbage_collector()
        log.info("hub listens at %s: /v1/nodes, /v1/gpus, /openapi.json, /metrics", running.url)
        log.info("state folder: %s", config.folder)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running.task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        log.info("hub is stopping: flushing queued batches")


async def run_relay(config: HubConfig, stop: asyncio.Event) -> None:
    """Run a relay until `stop` is set."""
    from gpufleet.wiring.relay import running_relay

    async with running_relay(config) as running:
        tune_garbage_collector()
        log.info("relay listens at %s: /v1/senders, /metrics; forwards to %s", running.url, config.relay.to)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running.task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        log.info("relay is stopping: forwarding queued batches")
