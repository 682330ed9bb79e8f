"""The command `gpufleet`. Here, and nowhere else, errors become exit codes.

0   done
1   it could not be done; stderr says why
2   wrong usage or configuration
130 interrupted
141 whoever read our output stopped reading
"""

import os
import sys
from typing import Annotated, NoReturn

import click
import typer

from gpufleet import __version__
from gpufleet.cli.snapshot import snapshot
from gpufleet.cli.version import version
from gpufleet.model.errors import ConfigError, GpufleetError

FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

COMMANDS = (snapshot, version)
"""Every command, in the order of the help. Their modules import what is heavy only when they run."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
for _command in COMMANDS:
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gpufleet {__version__}")
        raise typer.Exit


@app.callback()
def gpufleet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Truthful GPU telemetry from every host, VM guest, pod and job, to one trusted store."""


def main() -> NoReturn:
    """Run the command line and end the process."""
    sys.exit(_run())


def _run() -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return USAGE
    except ConfigError as error:
        _complain(error)
        return USAGE
    except GpufleetError as error:
        _complain(error)
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it ends: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code if isinstance(code, int) else 0


def _complain(error: Exception) -> None:
    for line in str(error).splitlines():
        print(f"gpufleet: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
