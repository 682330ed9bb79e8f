"""Arguments of daemons: the quick parser agrees with the command line's library, which a daemon does not load."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.cli.app import app
from gpufleet.cli.daemon_arguments import (
    AGENT_OPTIONS,
    CLUSTER_AGENT_OPTIONS,
    FLAGS,
    HUB_OPTIONS,
    parse_daemon_arguments,
)
from tests.support.processes import answers, free_port
from tests.support.waiting import PATIENCE, wait_until

OPTIONS: dict[str, Mapping[str, str]] = {
    "agent": AGENT_OPTIONS,
    "hub": HUB_OPTIONS,
    "cluster-agent": CLUSTER_AGENT_OPTIONS,
}
EACH = pytest.mark.parametrize("daemon", OPTIONS)

_root: Any = typer.main.get_command(app)
COMMANDS = {daemon: _root.commands[daemon] for daemon in OPTIONS}


@EACH
def test_every_option_of_the_help_is_known(daemon: str) -> None:
    declared = {
        name: parameter.name
        for parameter in COMMANDS[daemon].params
        if parameter.name != "help"
        for name in parameter.opts
    }
    assert declared == dict(OPTIONS[daemon])
    flags = {parameter.name for parameter in COMMANDS[daemon].params if parameter.is_flag}
    assert flags - {"help"} == FLAGS & set(OPTIONS[daemon].values())


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], {}),
        (["--listen", "a:1", "--hub=http://b", "-c", "f"], {"listen": "a:1", "hub": "http://b", "config": "f"}),
        (["--hub-url", "a", "--hub", "b", "--insecure-listen"], {"hub": "b", "insecure_listen": True}),
        (["--hub="], {"hub": ""}),
        *((arguments, None) for arguments in (["--help"], ["release"], ["--bogus"], ["--listen"], ["--hub", "--node"])),
        *((arguments, None) for arguments in (["--", "x"], ["-cf"], ["-c=f"], ["--insecure-listen=1"], ["--lis", "x"])),
    ],
)
def test_only_complete_options_are_parsed(arguments: list[str], values: dict[str, object] | None) -> None:
    assert parse_daemon_arguments(arguments, AGENT_OPTIONS) == values


@EACH
@given(data=st.data())
def test_parsed_values_equal_those_of_the_library(daemon: str, data: st.DataObject) -> None:
    given_texts = st.sampled_from(
        [*OPTIONS[daemon], "--hub=a", "--listen=", "a", "a=b", "--", "-", "-cx", "--nod", "release"]
    )
    arguments = data.draw(st.lists(given_texts, max_size=6))
    values = parse_daemon_arguments(arguments, OPTIONS[daemon])
    if values is None:
        return
    context = COMMANDS[daemon].make_context(daemon, list(arguments))
    parsed = {name: value for name, value in context.params.items() if value not in (None, False)}
    assert {**parsed, **({"config": str(parsed["config"])} if "config" in parsed else {})} == values


@pytest.mark.parametrize(
    ("daemon", "unused"),
    [("agent", ["pydantic", "rich", "sqlalchemy", "typer"]), ("hub", ["pandas", "rich", "typer"])],
)
def test_running_daemon_has_not_loaded_the_command_line(daemon: str, unused: list[str], tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    script = (
        "import atexit, json, sys\n"
        f"atexit.register(lambda: print(json.dumps([n for n in {unused!r} if n in sys.modules])))\n"
        f"sys.argv = ['gpufleet', '{daemon}', '--listen', '{listen}', '--state', {str(tmp_path)!r}]\n"
        "from gpufleet.cli.main import main\n"
        "main()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: answers(f"http://{listen}/healthz"), seconds=30, what="the daemon to listen")
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=30 * PATIENCE)
    assert process.returncode == 0
    assert json.loads(stdout.splitlines()[-1]) == []
