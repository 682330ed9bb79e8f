"""Options shared by several commands, and the error of commands."""

from pathlib import Path
from typing import Annotated

import typer

from gpufleet.model.errors import GpufleetError

AgentUrl = Annotated[
    str | None,
    typer.Option("--agent", metavar="URL", help="Query a running agent, for example http://127.0.0.1:9470."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The agent's configuration (TOML)."),
]
HubConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The hub's configuration (TOML).")
]
HubState = Annotated[str | None, typer.Option("--state", metavar="FOLDER", help="The hub's state folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HUB_URL = "http://127.0.0.1:8470"
HubUrl = Annotated[str, typer.Option("--hub", metavar="URL", help="URL of the hub.", show_default=True)]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", envvar="GPUFLEET_TOKEN_FILE", help="File with the token to send."),
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", envvar="GPUFLEET_CA", help="PEM file of trusted authorities."),
]


class CommandError(GpufleetError):
    """A command failed; the message contains the reason and what to do."""
