"""Entry point of the command `gpufleet`, and the only place that maps errors to exit codes.

0   success
1   failure; the reason is on stderr, except for a broken pipe
2   wrong usage or configuration
130 interrupted
"""

import logging
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from gpufleet import __version__
from gpufleet.cli.agent import agent_app
from gpufleet.cli.allocation import allocation_app
from gpufleet.cli.audit import audit
from gpufleet.cli.cluster import cluster_app
from gpufleet.cli.config import config_app
from gpufleet.cli.dashboard import dashboard_app
from gpufleet.cli.decode import decode
from gpufleet.cli.doctor import doctor_app
from gpufleet.cli.events import events
from gpufleet.cli.guest import guest_app
from gpufleet.cli.hub import hub
from gpufleet.cli.machine import machine_app
from gpufleet.cli.query import query_app
from gpufleet.cli.simulate import simulate_app
from gpufleet.cli.snapshot import snapshot
from gpufleet.cli.token import token_app
from gpufleet.cli.up import up
from gpufleet.cli.version import version
from gpufleet.cli.why import why
from gpufleet.model.errors import ConfigError, GpufleetError
from gpufleet.model.text import clean

FAILED, USAGE, INTERRUPTED = 1, 2, 130

# typer does not export the base class of its usage errors, which comes from click or from typer's copy of it.
_UsageError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

COMMANDS = (up, snapshot, why, events, decode, hub, audit, version)
"""Commands in the order of the help. Their modules import heavy dependencies only when they run."""

GROUPS = {
    "agent": agent_app,
    "doctor": doctor_app,
    "allocation": allocation_app,
    "cluster": cluster_app,
    "machine": machine_app,
    "query": query_app,
    "token": token_app,
    "config": config_app,
    "guest": guest_app,
    "dashboard": dashboard_app,
    "simulate": simulate_app,
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


def main() -> NoReturn:
    """Run the command line and exit the process."""
    sys.exit(_run())


def _run() -> int:
    # Only daemons log; commands report errors on stderr.
    logging.getLogger("gpufleet").addHandler(logging.NullHandler())
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        error.show()
        return USAGE
    except ConfigError as error:
        _print_error(error)
        return USAGE
    except GpufleetError as error:
        _print_error(error)
        return FAILED
    except ModuleNotFoundError as error:
        if (error.name or "gpufleet").partition(".")[0] == "gpufleet":
            raise
        _print_error(f"{error.name} is not installed: install gpufleet[agent] for an agent, gpufleet[hub] for a hub")
        return FAILED
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _print_error(error)
        # Python flushes stdout again at exit: redirect it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code if isinstance(code, int) else 0


def _print_error(error: object) -> None:
    for line in str(error).splitlines():
        print(f"gpufleet: {clean(line)}", file=sys.stderr)  # may contain text from a remote server


if __name__ == "__main__":
    main()
