"""Runtimes in the configurations of Docker and containerd. Pure.

Only names of runtimes are taken: the files can have secrets.
"""

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.model.text import bounded
from gpufleet.probe.facts import FactList
from gpufleet.readers.host.parse.text import printable
from gpufleet.readers.host.source import FetchedFiles

DOCKER_CONFIG = "/etc/docker/daemon.json"
CONTAINERD_CONFIG = "/etc/containerd/config.toml"

CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""Plugins with the runtimes: of version 3 and of version 2 of the file."""

MAX_RUNTIMES = 64


def add_runtimes(source: FetchedFiles, into: FactList) -> None:
    """Add the facts of both files. Files that containerd's imports are not read."""
    config = source.take(DOCKER_CONFIG, _docker_runtimes)
    default, _, runtimes = ("", "", "") if isinstance(config, Absent) else config.partition(" ")
    unset = Absent(Reason.NOT_REPORTED, "the configuration does not set it")
    into.add("docker_default_runtime", config if isinstance(config, Absent) else default or unset, DOCKER_CONFIG)
    has_nvidia = config if isinstance(config, Absent) else "nvidia" in runtimes.split()
    into.add("docker_nvidia_runtime", has_nvidia, DOCKER_CONFIG)
    into.add("containerd_runtimes", source.take(CONTAINERD_CONFIG, containerd_runtimes), CONTAINERD_CONFIG)


def containerd_runtimes(content: bytes, where: str) -> str:
    """Return the names of the runtimes, the default with `*`; `none` if the file configures none.

    Raises:
        WireError: if the content is not TOML of this form.
    """
    try:
        config: Any = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WireError(where, f"not TOML: {error}"[:300]) from error
    plugins = _table(config, "plugins", where)
    names: dict[str, None] = {}
    for plugin in CRI_PLUGINS:
        containerd = _table(_table(plugins, plugin, where), "containerd", where)
        default = containerd.get("default_runtime_name", "")
        for name in _table(containerd, "runtimes", where):
            names[f"{printable(name)}*" if name == default else printable(name)] = None
    return bounded(", ".join(sorted(names)[:MAX_RUNTIMES]), 1024) or "none"


def _table(parent: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = parent.get(name, {})
    if not isinstance(found, dict):
        raise WireError(where, f"{name} is not a table")
    return found


def _docker_runtimes(content: bytes, where: str) -> str:
    """Return default runtime and names of runtimes, separated by spaces."""
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WireError(where, f"not JSON: {error}") from error
    runtimes = config.get("runtimes", {}) if isinstance(config, dict) else None
    default = config.get("default-runtime", "") if isinstance(config, dict) else None
    if not isinstance(runtimes, dict) or not isinstance(default, str):
        raise WireError(where, "not a configuration of Docker")
    return " ".join((printable(default).replace(" ", "_"), *(printable(name) for name in runtimes)))
