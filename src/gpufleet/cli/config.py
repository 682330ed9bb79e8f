"""`gpufleet config`: what configuration is in force, whether it is right, and a file to begin with."""

import enum
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gpufleet.cli.init import STDOUT, Force, Output, write_output
from gpufleet.cli.options import ConfigFile, Json
from gpufleet.config.agent import ENV_PREFIX as AGENT_PREFIX
from gpufleet.config.agent import AgentConfig
from gpufleet.config.hub import ENV_PREFIX as HUB_PREFIX
from gpufleet.config.hub import HubConfig
from gpufleet.config.load import ConfigProblemsError, Resolved, leaves, resolve
from gpufleet.config.secret_files import missing_files
from gpufleet.config.template import render_template, render_toml
from gpufleet.model.errors import ConfigError

config_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="What configuration is in force, whether it is right, a new file."
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
    """Say whether the configuration is right and the files it names are there; if not, end with 2 and every problem."""
    try:
        problems = missing_files(_resolve(daemon, config))
    except ConfigProblemsError as error:
        other = Daemon.HUB if daemon is Daemon.AGENT else Daemon.AGENT
        if config is None or not _is_right(other, config):
            raise
        hint = ConfigError(str(config), "", f"would be right for the {other}: gpufleet config validate --for {other}")
        raise ConfigProblemsError((*error.problems, hint)) from error
    if problems:
        raise ConfigProblemsError(problems)
    print(f"the {daemon}'s configuration is right")


@config_app.command()
def init(daemon: For = Daemon.AGENT, output: Output = STDOUT, force: Force = False) -> None:
    """Write a configuration file to begin with: every key, commented out at its default."""
    record, prefix = _RECORDS[daemon]
    write_output(render_template(record, daemon=daemon, env_prefix=prefix), output, force=force)


def _is_right(daemon: Daemon, config: Path) -> bool:
    try:
        _resolve(daemon, config)
    except ConfigError:
        return False
    return True


def _resolve(daemon: Daemon, config: ConfigFile) -> Resolved[Any]:
    record, prefix = _RECORDS[daemon]
    return resolve(record, file=config, env_prefix=prefix, env=os.environ, flags={})


def _value(config: object, key: str) -> object:
    for part in key.split("."):
        config = getattr(config, part)
    return config
