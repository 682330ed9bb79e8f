"""`gpufleet agent`: runs the agent of a node, and controls a running one."""

import asyncio
import logging
import os
from typing import Annotated

import typer

from gpufleet.cli.daemon import run_until_stopped, tune_garbage_collector
from gpufleet.cli.logs import set_up_logs
from gpufleet.cli.options import ConfigFile
from gpufleet.cli.release import release, resume
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import load

log = logging.getLogger(__name__)


agent_app = typer.Typer(invoke_without_command=True)
agent_app.command()(release)
agent_app.command()(resume)


@agent_app.callback()
def agent(
    context: typer.Context,
    config: ConfigFile = None,
    hub: Annotated[
        str | None,
        typer.Option("--hub", "--hub-url", metavar="URL", help="Push to this hub, for example http://hub:8470."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address to listen on [default: 127.0.0.1:9470].")
    ] = None,
    insecure_listen: Annotated[
        bool | None,
        typer.Option("--insecure-listen", help="Allow listening beyond loopback without TLS or a token."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="ID", help="Cluster of this machine.")] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="Node name to report [default: the host name].")
    ] = None,
    state: Annotated[str | None, typer.Option(metavar="FOLDER", help="Folder of the spool.")] = None,
    dialect: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Metric names on /metrics: native, dcgm, all-smi, nvidia-gpu-exporter, kubevirt; comma-separated.",
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")
    ] = None,
) -> None:
    """Read this node on a schedule, serve the readings, and push them to a hub. Runs until stopped."""
    if context.invoked_subcommand is not None:
        return
    settings = load(
        AgentConfig,
        file=config,
        env_prefix=ENV_PREFIX,
        env=os.environ,
        flags={
            "hub.url": hub,
            "listen": listen,
            "insecure_listen": insecure_listen,
            "cluster": cluster,
            "node": node,
            "state": state,
            "metrics.dialects": dialect.split(",") if dialect else None,
            "log_level": log_level,
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
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running.task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        log.info("agent is stopping")
