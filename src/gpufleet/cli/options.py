"""Options shared by several commands, and the error of commands."""

import enum
from pathlib import Path
from typing import Annotated, TypeVar

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
CollectorConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The collector's configuration (TOML).")
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
Wide = Annotated[bool, typer.Option("--wide", help="Show every column in full, however wide the table is.")]
Columns = Annotated[
    str | None, typer.Option("--columns", metavar="NAMES", help="Show only these columns, comma-separated.")
]
Sort = Annotated[
    str | None, typer.Option("--sort", metavar="COLUMN", help="Sort by this column; -COLUMN reverses the order.")
]
Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Show at most this many rows.")]
Watch = Annotated[
    str | None,
    typer.Option("--watch", metavar="SPAN", help="Repeat at this interval, for example 5s, until Ctrl-C."),
]
States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="Show only rows with this state; may be repeated."),
]
TIME = "RFC 3339, or a duration before now such as 10m"
"""Help of options that take a time."""


class OptionError(typer.BadParameter):
    """Wrong value of an option."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message, param_hint=option)


class CommandError(GpufleetError):
    """A command failed; the message contains the reason and what to do."""


Format = TypeVar("Format", bound=enum.StrEnum)


def with_json(format: Format, json: bool) -> Format:  # noqa: A002 - the option's name
    """Return the output format of a command that has `--format` and `--json`.

    Args:
        format: given or default one; the enum has `table`, the default, and `json`.
        json: whether `--json` was given.

    Raises:
        OptionError: if both were given and contradict each other.
    """
    if not json:
        return format
    if format not in ("table", "json"):
        raise OptionError("--json", f"contradicts --format {format}: pass one of the two")
    return type(format)("json")
