"""Commands of `gpufleet query`, in the order of the help."""

import typer

from gpufleet.cli.query.allocations import allocation, allocations, series
from gpufleet.cli.query.contract import contract
from gpufleet.cli.query.events import events
from gpufleet.cli.query.findings import findings
from gpufleet.cli.query.fleet import fleet, senders
from gpufleet.cli.query.gpus import changes, gpus, pools
from gpufleet.cli.query.machines import machines, nodes, probe_changes
from gpufleet.cli.query.processes import processes
from gpufleet.cli.query.sql import sql
from gpufleet.cli.query.usage import usage
from gpufleet.cli.query.who import who

COMMANDS = (
    fleet, contract, findings, nodes, machines, probe_changes, gpus, who, changes, pools,
    allocations, allocation, series, events, usage, processes, senders, sql,
)  # fmt: skip
"""Commands in the order of the help."""

query_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Query a hub. Tables fit the terminal; without a terminal, rows are tab-separated.",
)
for _command in COMMANDS:
    query_app.command()(_command)
