"""Entry point of the command `gpufleet`, and the only place that maps errors to exit codes.

0   success
1   failure; the reason is on stderr, except for a broken pipe
2   wrong usage or configuration
130 interrupted
"""

import logging
import os
import sys
from typing import NoReturn

from gpufleet.cli.daemon_arguments import AGENT_OPTIONS, CLUSTER_AGENT_OPTIONS, HUB_OPTIONS, parse_daemon_arguments
from gpufleet.model.errors import ConfigError, GpufleetError
from gpufleet.model.text import clean

FAILED, USAGE, INTERRUPTED = 1, 2, 130

COMPLETION = "_GPUFLEET_COMPLETE"
"""Variable by which a shell requests completions."""


def main() -> NoReturn:
    """Run the command line and exit the process."""
    sys.exit(_run())


def _run() -> int:
    # Only daemons log; commands report errors on stderr.
    logging.getLogger("gpufleet").addHandler(logging.NullHandler())
    try:
        code = 0 if _run_daemon(sys.argv[1:]) else _run_command()
        sys.stdout.flush()
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
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _print_error(error)
        # Python flushes stdout again at exit: redirect it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code


def _run_daemon(arguments: list[str]) -> bool:
    """Run a daemon to its end if the arguments start one; it loads no module of other commands."""
    if not arguments or COMPLETION in os.environ:
        return False
    command, options = arguments[0], arguments[1:]
    if command == "agent" and (values := parse_daemon_arguments(options, AGENT_OPTIONS)) is not None:
        from gpufleet.cli.agent_daemon import start_agent

        start_agent(values)
        return True
    if command == "hub" and (values := parse_daemon_arguments(options, HUB_OPTIONS)) is not None:
        from gpufleet.cli.hub_daemon import start_hub

        start_hub(values)
        return True
    if command == "cluster-agent" and (values := parse_daemon_arguments(options, CLUSTER_AGENT_OPTIONS)) is not None:
        from gpufleet.cli.cluster_agent_daemon import start_cluster_agent

        start_cluster_agent(values)
        return True
    return False


def _run_command() -> int:
    import typer

    from gpufleet.cli.app import UsageError, app

    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        error.show()
        return USAGE
    except typer.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _print_error(error: object) -> None:
    for line in str(error).splitlines():
        print(f"gpufleet: {clean(line)}", file=sys.stderr)  # may contain text from a remote server


if __name__ == "__main__":
    main()
