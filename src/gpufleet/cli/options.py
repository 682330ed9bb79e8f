"""Options that several commands share, so that they read the same everywhere.

What a command says when it cannot do what was asked.
"""

from pathlib import Path
from typing import Annotated

import typer

from gpufleet.model.errors import GpufleetError

AgentUrl = Annotated[
    str | None,
    typer.Option("--agent", metavar="URL", help="Ask a running agent, such as http://127.0.0.1:9470."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The agent's configuration (TOML)."),
]
HubConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The hub's configuration (TOML).")
]
HubState = Annotated[str | None, typer.Option("--state", metavar="FOLDER", help="The hub's state folder.")]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
HUB_URL = "http://127.0.0.1:8470"
HubUrl = Annotated[str, typer.Option("--hub", metavar="URL", help="Ask this hub.", show_default=True)]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", envvar="GPUFLEET_TOKEN_FILE", help="Show the token in this file."),
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", envvar="GPUFLEET_CA", help="Trust the authorities in this PEM file."),
]


class CommandError(GpufleetError):
    """A command cannot answer; its text says why and what to do."""
