"""`gpufleet agent`: runs the agent of a node, and controls a running one."""

from typing import Annotated

import typer

from gpufleet.cli.agent_daemon import start_agent
from gpufleet.cli.options import ConfigFile
from gpufleet.cli.release import probe, release, resume

agent_app = typer.Typer(invoke_without_command=True)
agent_app.command()(release)
agent_app.command()(resume)
agent_app.command()(probe)


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
            help="Names on /metrics: native, dcgm, all-smi, nvidia-gpu-exporter, kubevirt, l9gpu; comma-separated.",
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")
    ] = None,
) -> None:
    """Read this node on a schedule, serve the readings, and push them to a hub. Runs until stopped."""
    if context.invoked_subcommand is not None:
        return
    start_agent(
        {
            "config": str(config) if config is not None else None,
            "hub": hub,
            "listen": listen,
            "insecure_listen": insecure_listen,
            "cluster": cluster,
            "node": node,
            "state": state,
            "dialect": dialect,
            "log_level": log_level,
        }
    )
