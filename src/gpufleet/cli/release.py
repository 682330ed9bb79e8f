"""`gpufleet agent release` and `resume`: let go of the GPUs, and take them again."""

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gpufleet.agent.collect.release import REQUEST, Release, Released, put, read_answer
from gpufleet.cli.options import CommandError, ConfigFile
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.load import load
from gpufleet.model.time import NANOS, to_datetime

T = TypeVar("T")

AGENT_FOLDER = "agent"
WAIT_SECONDS = 60.0
"""How long the agent may take: a pass that is under way in a slow driver has to end first."""

_SPAN = re.compile(r"([0-9]{1,6})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

State = Annotated[str | None, typer.Option(metavar="FOLDER", help="The agent's state folder.")]


def release(
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End by itself after this, such as 90s, 10m or 2h.")
    ] = None,
    config: ConfigFile = None,
    state: State = None,
) -> None:
    """Make this node's agent close every GPU, for a reset, a MIG change or a driver's upgrade; wait until it has.

    The release holds until `gpufleet agent resume`, over restarts of the agent too. It takes root or the agent's user.
    """
    folder = _folder(config, state)
    now = time.time_ns()
    until = None if for_ is None else now + _span(for_) * NANOS
    asked = Release(since=now, until=until)
    if not folder.is_dir():
        raise CommandError(f"{folder} is not there: no agent has used this state folder; --state names another")
    try:
        put(folder / REQUEST, asked)
    except OSError as error:
        raise CommandError(f"{folder / REQUEST}: {error.strerror}: run this as root or as the agent's user") from error
    answer = _wait(lambda: _answered(folder, asked))
    if answer is None:
        raise CommandError(
            f"no agent with the state folder {folder.parent} has let go of the GPUs within {WAIT_SECONDS:g} s: either "
            "none is running, or the driver does not let go; its log says more. The release stays: an agent that "
            "starts does not touch the GPUs before `gpufleet agent resume`"
        )
    end = "until `gpufleet agent resume`" if until is None else f"until {to_datetime(until).isoformat()}"
    print(f"the agent (process {answer.pid}) holds no GPU, {end}")


def resume(config: ConfigFile = None, state: State = None) -> None:
    """Let this node's agent read the GPUs again."""
    folder = _folder(config, state)
    try:
        (folder / REQUEST).unlink()
    except FileNotFoundError:
        print("nothing was released")
        return
    except OSError as error:
        raise CommandError(f"{folder / REQUEST}: {error.strerror}: run this as root or as the agent's user") from error
    answer = read_answer(folder)
    if answer is None or not _runs(answer.pid):
        print("the release is over; no agent that runs had let go of the GPUs")
    elif _wait(lambda: read_answer(folder) is None):
        print(f"the agent (process {answer.pid}) reads the GPUs again")
    else:
        raise CommandError(f"the agent (process {answer.pid}) has not taken the GPUs again within {WAIT_SECONDS:g} s")


def _folder(config: Path | None, state: str | None) -> Path:
    settings = load(AgentConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={"state": state})
    return Path(settings.state, AGENT_FOLDER)


def _span(text: str) -> int:
    found = _SPAN.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not a time such as 90s, 10m or 2h", param_hint="--for")
    return int(found[1]) * _SECONDS[found[2]]


def _answered(folder: Path, asked: Release) -> Released | None:
    answer = read_answer(folder)
    return answer if answer is not None and answer.since == asked.since and _runs(answer.pid) else None


def _runs(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True


def _wait(condition: Callable[[], T]) -> T:
    """Ask again and again until it is so; return the last answer."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (answer := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return answer
