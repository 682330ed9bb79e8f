"""`gpufleet config`: what configuration is in force, and whether it is right."""

import enum
import os
from typing import Annotated, Any

import msgspec
import typer

from gpufleet.cli.options import ConfigFile, Json
from gpufleet.config.agent import ENV_PREFIX as AGENT_PREFIX
from gpufleet.config.agent import AgentConfig
from gpufleet.config.hub import ENV_PREFIX as HUB_PREFIX
from gpufleet.config.hub import HubConfig
from gpufleet.config.load import Resolved, leaves, resolve
from gpufleet.config.toml import render_toml

config_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="What configuration is in force, and whether it is right."
)


class Daemon(enum.StrEnum):
    """Whose configuration."""

    AGENT = "agent"
    HUB = "hub"


_RECORDS: dict[Daemon, tuple[type[msgspec.Struct], str]] = {
    Daemon.AGENT: (AgentConfig, AGENT_PREFIX),
    Daemon.HUB: (HubConfig, HUB_PREFIX),
}

For = Annotated[Daemon, typer.Option("--for", help="Whose configuration.")]


@config_app.command("print")
def print_config(
    daemon: For = Daemon.AGENT,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Print the configuration in force as TOML, each value with where it came from."""
    resolved = _resolve(daemon, config)
    if not json:
        print(render_toml(resolved), end="")
        return
    values = {
        key: {"value": _value(resolved.config, key), "origin": resolved.origin(key)}
        for key, _ in leaves(type(resolved.config))
    }
    print(msgspec.json.encode(values).decode())


@config_app.command()
def validate(
    daemon: For = Daemon.AGENT,
    config: ConfigFile = None,
) -> None:
    """Say whether the configuration is right; ends with 2, and every problem, if it is not."""
    _resolve(daemon, config)
    print(f"the {daemon}'s configuration is right")


def _resolve(daemon: Daemon, config: ConfigFile) -> Resolved[Any]:
    record, prefix = _RECORDS[daemon]
    return resolve(record, file=config, env_prefix=prefix, env=os.environ, flags={})


def _value(config: object, key: str) -> object:
    for part in key.split("."):
        config = getattr(config, part)
    return config
