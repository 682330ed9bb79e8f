"""docs/network.md: each address at which a daemon or command listens by default is in a table."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from gpufleet.cli.app import app
from gpufleet.config.agent import AgentConfig
from gpufleet.config.cluster import ClusterAgentConfig
from gpufleet.config.hub import HubConfig
from gpufleet.config.load import leaves

PAGE = (Path(__file__).parents[2] / "docs" / "network.md").read_text(encoding="utf-8")
ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


def listeners() -> Iterator[tuple[str, str]]:
    """Yield the name and default port of each listener: of the daemons, and of commands with such an option."""
    for record in (AgentConfig, HubConfig, ClusterAgentConfig):
        for key, field in leaves(record):
            if key.endswith("listen") and (found := ADDRESS.fullmatch(str(field.default))):
                yield record.__name__, found[1]
    commands: list[tuple[str, Any]] = [("gpufleet", typer.main.get_command(app))]
    while commands:
        name, command = commands.pop()
        commands += [(f"{name} {one}", each) for one, each in getattr(command, "commands", {}).items()]
        for one in command.params:
            if one.name == "listen" and (found := ADDRESS.fullmatch(str(one.default))):
                yield name, found[1]


def test_default_port_of_every_listener_is_documented() -> None:
    table = PAGE.partition("## Inbound")[2].partition("## Outbound")[0]
    found = dict(listeners())
    assert found.keys() >= {"AgentConfig", "HubConfig", "ClusterAgentConfig", "gpufleet simulate exporter"}
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    missing = {
        name: port
        for name, port in found.items()
        if not any(f" {port}" in row and (not name.startswith("gpufleet") or f"`{name}`" in row) for row in rows)
    }
    assert missing == {}
