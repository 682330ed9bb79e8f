"""`gpufleet agent release`, `resume` and `probe`: requests to the running agent of this node."""

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gpufleet.agent.collect.release import REQUEST, Release, ReleaseAnswer, read_answer, write_file
from gpufleet.cli.options import CommandError, ConfigFile
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import load
from gpufleet.model.time import NANOS, to_datetime

T = TypeVar("T")

TIMEOUT_SECONDS = 60.0
"""Timeout for the agent, which first finishes a pass in progress, possibly with a slow driver."""

_SPAN = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

State = Annotated[str | None, typer.Option(metavar="FOLDER", help="The agent's state folder.")]


def release(
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="SPAN", help="Resume automatically after this time, for example 90s, 10m or 2h."),
    ] = None,
    config: ConfigFile = None,
    state: State = None,
) -> None:
    """Make the agent of this node close all GPUs, for a reset, MIG change or driver upgrade, and wait for it.

    The release lasts until `gpufleet agent resume`, also across agent restarts. Run as root or as the agent's user.
    """
    folder = _folder(config, state)
    now = time.time_ns()
    until = None if for_ is None else now + _span(for_) * NANOS
    request = Release(since=now, until=until)
    if not folder.is_dir():
        raise CommandError(f"{folder} does not exist: no agent has used this state folder; set another with --state")
    try:
        write_file(folder / REQUEST, request)
    except OSError as error:
        raise CommandError(f"{folder / REQUEST}: {error.strerror}: run this as root or as the agent's user") from error
    answer = _wait(lambda: _answer_to(folder, request))
    if answer is None:
        raise CommandError(
            f"no agent with the state folder {folder.parent} has released the GPUs within {TIMEOUT_SECONDS:g} s: "
            "either none is running, or the driver blocks; see the agent's log. The release stays in force: an agent "
            "that starts does not open the GPUs before `gpufleet agent resume`"
        )
    end = "until `gpufleet agent resume`" if until is None else f"until {to_datetime(until).isoformat()}"
    print(f"the agent (process {answer.pid}) has released all GPUs, {end}")


def resume(config: ConfigFile = None, state: State = None) -> None:
    """End the release: the agent of this node reads the GPUs again."""
    folder = _folder(config, state)
    try:
        (folder / REQUEST).unlink()
    except FileNotFoundError:
        print("there is no release")
        return
    except OSError as error:
        raise CommandError(f"{folder / REQUEST}: {error.strerror}: run this as root or as the agent's user") from error
    answer = read_answer(folder)
    if answer is None or not _is_running(answer.pid):
        print("the release has ended; no running agent had released the GPUs")
    elif _wait(lambda: read_answer(folder) is None):
        print(f"the agent (process {answer.pid}) reads the GPUs again")
    else:
        raise CommandError(f"the agent (process {answer.pid}) has not reopened the GPUs within {TIMEOUT_SECONDS:g} s")


def probe(config: ConfigFile = None, state: State = None) -> None:
    """Make the agent of this node repeat the performance probe of the node and of its guests.

    The agent checks for requests every two minutes. Run as root or as the agent's user.
    """
    from gpufleet.wiring.probe import request_probe

    folder = _folder(config, state)
    try:
        request_probe(folder)
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror}: run this as root or as the agent's user") from error
    print("requested")


def _folder(config: Path | None, state: str | None) -> Path:
    return load(AgentConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={"state": state}).folder


def _span(text: str) -> int:
    found = _SPAN.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not a time such as 90s, 10m or 2h", param_hint="--for")
    return int(found[1]) * _SECONDS[found[2]]


def _answer_to(folder: Path, request: Release) -> ReleaseAnswer | None:
    answer = read_answer(folder)
    return answer if answer is not None and answer.since == request.since and _is_running(answer.pid) else None


def _is_running(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True


def _wait(condition: Callable[[], T]) -> T:
    """Poll the condition until it is true or the timeout expires; return its last value."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return answer
