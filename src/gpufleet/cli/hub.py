"""`gpufleet hub`: runs a hub or a relay."""

from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.hub_daemon import start_hub
from gpufleet.cli.hub_init import certificate, init

hub_app = typer.Typer(invoke_without_command=True)
hub_app.command()(init)
hub_app.command()(certificate)


@hub_app.callback()
def hub(
    context: typer.Context,
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
    accept_data_loss: Annotated[
        bool,
        typer.Option(
            "--accept-data-loss", help="Start although either the registry or the store is empty, but not both."
        ),
    ] = False,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning or error.")
    ] = None,
) -> None:
    """Receive and store the batches of a fleet, and serve queries. Runs until stopped."""
    if context.invoked_subcommand is not None:
        return
    start_hub(
        {
            "config": str(config) if config is not None else None,
            "listen": listen,
            "insecure_listen": insecure_listen,
            "state": state,
            "store": store,
            "relay_to": relay_to,
            "accept_data_loss": accept_data_loss,
            "log_level": log_level,
        }
    )
