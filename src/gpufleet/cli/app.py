"""Commands of `gpufleet`, in the order of the help."""

from typing import Annotated, Any

import typer

from gpufleet import __version__
from gpufleet.cli.agent import agent_app
from gpufleet.cli.allocation import allocation_app
from gpufleet.cli.audit import audit
from gpufleet.cli.bench import bench_app
from gpufleet.cli.cluster import cluster_app
from gpufleet.cli.cluster_agent import cluster_agent
from gpufleet.cli.config import config_app
from gpufleet.cli.contract import contract_app
from gpufleet.cli.dashboard import dashboard_app
from gpufleet.cli.decode import decode
from gpufleet.cli.doctor import doctor_app
from gpufleet.cli.events import events
from gpufleet.cli.findings import findings_app
from gpufleet.cli.guest import guest_app
from gpufleet.cli.hub import hub_app
from gpufleet.cli.join import join
from gpufleet.cli.machine import machine_app
from gpufleet.cli.onboard import onboard
from gpufleet.cli.query.app import query_app
from gpufleet.cli.record import record
from gpufleet.cli.replay import replay
from gpufleet.cli.rules import rules_app
from gpufleet.cli.simulate import simulate_app
from gpufleet.cli.snapshot import snapshot
from gpufleet.cli.token import token_app
from gpufleet.cli.top import top
from gpufleet.cli.up import up
from gpufleet.cli.version import version
from gpufleet.cli.who import who
from gpufleet.cli.why import why

UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""Base class of usage errors, from click or from typer's copy of it; typer does not export it."""

COMMANDS = (up, cluster_agent, snapshot, top, who, why, events, record, replay, decode, join, onboard, audit, version)
"""Commands in the order of the help. Their modules import heavy dependencies only when they run."""

GROUPS = {
    "agent": agent_app,
    "hub": hub_app,
    "doctor": doctor_app,
    "allocation": allocation_app,
    "cluster": cluster_app,
    "machine": machine_app,
    "query": query_app,
    "findings": findings_app,
    "token": token_app,
    "config": config_app,
    "guest": guest_app,
    "contract": contract_app,
    "dashboard": dashboard_app,
    "rules": rules_app,
    "simulate": simulate_app,
    "bench": bench_app,
}
"""Commands with subcommands."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
for _command in COMMANDS:
    app.command()(_command)
for _name, _commands in GROUPS.items():
    app.add_typer(_commands, name=_name)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"gpufleet {__version__}")
        raise typer.Exit


@app.callback()
def gpufleet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """GPU telemetry from hosts, VM guests, pods and jobs to one store."""
