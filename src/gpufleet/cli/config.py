"""`gpufleet config`: prints, validates and creates configuration."""

import enum
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gpufleet.cli.init import STDOUT, Force, Output, write_output
from gpufleet.cli.options import Json
from gpufleet.config.agent import ENV_PREFIX as AGENT_PREFIX
from gpufleet.config.agent import AgentConfig
from gpufleet.config.cluster import ENV_PREFIX as CLUSTER_PREFIX
from gpufleet.config.cluster import ClusterAgentConfig
from gpufleet.config.hub import ENV_PREFIX as HUB_PREFIX
from gpufleet.config.hub import HubConfig
from gpufleet.config.load import ConfigProblemsError, LoadedConfig, leaves, resolve
from gpufleet.config.template import render_template, render_toml
from gpufleet.model.errors import ConfigError
from gpufleet.wiring.validation import check_agent, check_cluster_agent, check_hub

config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Print, validate and create configuration.")


class DaemonKind(enum.StrEnum):
    """Daemon whose configuration is printed, validated or created."""

    AGENT = "agent"
    HUB = "hub"
    CLUSTER_AGENT = "cluster-agent"


_RECORDS: dict[DaemonKind, tuple[type[msgspec.Struct], str]] = {
    DaemonKind.AGENT: (AgentConfig, AGENT_PREFIX),
    DaemonKind.HUB: (HubConfig, HUB_PREFIX),
    DaemonKind.CLUSTER_AGENT: (ClusterAgentConfig, CLUSTER_PREFIX),
}

_CHECKS: dict[DaemonKind, Callable[..., tuple[ConfigError, ...]]] = {
    DaemonKind.AGENT: check_agent,
    DaemonKind.HUB: check_hub,
    DaemonKind.CLUSTER_AGENT: check_cluster_agent,
}

DaemonOption = Annotated[DaemonKind, typer.Option("--for", help="Daemon that reads the configuration.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The daemon's configuration (TOML).")
]


@config_app.command("print")
def print_config(
    daemon: DaemonOption = DaemonKind.AGENT,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Print the effective configuration as TOML, with the origin of each value."""
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
    daemon: DaemonOption = DaemonKind.AGENT,
    config: ConfigFile = None,
) -> None:
    """Check the configuration and the files, folders and databases it names.

    Prints all problems, and exits with 2 if there are any. A file or folder of another user is not a problem: run this
    as the daemon's user to check its permissions too.
    """
    try:
        problems = _CHECKS[daemon](_resolve(daemon, config), daemon=False)
    except ConfigProblemsError as error:
        others = [] if config is None else [one for one in DaemonKind if one is not daemon and _is_valid(one, config)]
        if not others:
            raise
        other = others[0]
        hint = ConfigError(str(config), "", f"is valid for the {other}: gpufleet config validate --for {other}")
        raise ConfigProblemsError((*error.problems, hint)) from error
    if problems:
        raise ConfigProblemsError(problems)
    print(f"the {daemon}'s configuration is valid")


@config_app.command()
def init(daemon: DaemonOption = DaemonKind.AGENT, output: Output = STDOUT, force: Force = False) -> None:
    """Write a configuration template: all keys with their defaults, commented out."""
    record, prefix = _RECORDS[daemon]
    write_output(render_template(record, daemon=daemon, env_prefix=prefix), output, force=force)


def _is_valid(daemon: DaemonKind, config: Path) -> bool:
    try:
        _resolve(daemon, config)
    except ConfigError:
        return False
    return True


def _resolve(daemon: DaemonKind, config: ConfigFile) -> LoadedConfig[Any]:
    record, prefix = _RECORDS[daemon]
    return resolve(record, file=config, env_prefix=prefix, env=os.environ, flags={})


def _value(config: object, key: str) -> object:
    for part in key.split("."):
        config = getattr(config, part)
    return config
