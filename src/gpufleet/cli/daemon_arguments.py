"""Arguments of the daemons, parsed without the command line's library.

That library takes 11 MiB of a process that runs for months. Help, completion, subcommands and wrong arguments are left
to it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

DaemonValue = str | bool | None
"""Value of an option: text, True for a flag, or None if it is not given."""

AGENT_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "--config": "config",
        "-c": "config",
        "--hub": "hub",
        "--hub-url": "hub",
        "--listen": "listen",
        "--insecure-listen": "insecure_listen",
        "--cluster": "cluster",
        "--node": "node",
        "--state": "state",
        "--dialect": "dialect",
        "--log-level": "log_level",
    }
)
"""Option of `gpufleet agent` to its parameter in `cli/agent.py`."""

HUB_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "--config": "config",
        "-c": "config",
        "--listen": "listen",
        "--insecure-listen": "insecure_listen",
        "--state": "state",
        "--store": "store",
        "--relay-to": "relay_to",
        "--accept-data-loss": "accept_data_loss",
        "--log-level": "log_level",
    }
)
"""Option of `gpufleet hub` to its parameter in `cli/hub.py`."""

CLUSTER_AGENT_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "--config": "config",
        "-c": "config",
        "--hub": "hub",
        "--hub-url": "hub",
        "--kubeconfig": "kubeconfig",
        "--listen": "listen",
        "--insecure-listen": "insecure_listen",
        "--cluster": "cluster",
        "--replica": "replica",
        "--state": "state",
        "--log-level": "log_level",
    }
)
"""Option of `gpufleet cluster-agent` to its parameter in `cli/cluster_agent.py`."""

FLAGS = frozenset({"insecure_listen", "accept_data_loss"})
"""Parameters without a value."""


def parse_daemon_arguments(arguments: Sequence[str], options: Mapping[str, str]) -> dict[str, DaemonValue] | None:
    """Return the values by parameter, or None unless every argument is an option of the daemon with its value."""
    values: dict[str, DaemonValue] = {}
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, text = argument.partition("=")
        parameter = options.get(name)
        if parameter is None or (equals and not name.startswith("--")):
            return None
        if parameter in FLAGS:
            if equals:
                return None
            values[parameter] = True
            continue
        value = text if equals else next(remaining, None)
        if value is None or (not equals and value.startswith("-")):
            return None
        values[parameter] = value
    return values
