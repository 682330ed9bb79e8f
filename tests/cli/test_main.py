"""Common behaviour of commands: exit codes, version, configuration and help."""

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpufleet import __version__
from tests.support.command import gpufleet
from tests.support.waiting import PATIENCE, wait_until


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("lisetn = 'x'", "lisetn", "unknown key; did you mean listen?"),
        ("listen = 9470", "listen", "Expected `str`, got `int`"),
        ("listen = '0.0.0.0:9470'", "listen", "insecure_listen"),
        ("[lanes]\nfast = 0", "lanes.fast", ">= 1.0"),
        ("[lanes]\nfast = true", "lanes.fast", "Expected `float`"),
        ("[readers.nvml]\nenabled = 'yes'", "readers.nvml.enabled", "Expected `bool`"),
        ("[readers.dcgm]\nenabled = true", "readers.dcgm", "unknown key"),
        ("[hub]\nurl = 'hub:8470'", "hub.url", "http://HOST:PORT"),
        ("[spool]\nmax_bytes = 1", "spool.max_bytes", ">= 1048576"),
        ("log_level = 'loud'", "log_level", "Invalid enum value"),
        ("a = [", "", "is not TOML"),
    ],
)
@pytest.mark.parametrize("command", [("agent",), ("config", "validate"), ("snapshot",)])
def test_wrong_configuration_exits_2_with_file_and_key(
    tmp_path: Path, command: tuple[str, ...], text: str, key: str, reason: str
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    done = gpufleet(*command, "--config", str(file))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gpufleet: {file}: {key}")
    assert reason in line


def test_each_configuration_problem_has_its_own_line(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("lisetn = 'x'\ncluster = 7\n")
    done = gpufleet("agent", "--config", str(file), "--listen", "nowhere", env={"GPUFLEET_AGENT_LANES__SLOW": "x"})
    assert done.returncode == 2
    assert [line.split(": ")[1:3] for line in done.stderr.splitlines()] == [
        [str(file), "lisetn"],
        [str(file), "cluster"],
        ["GPUFLEET_AGENT_LANES__SLOW", "lanes.slow"],
        ["--listen", "listen"],
    ]


@pytest.mark.parametrize("arguments", [["bogus"], ["snapshot", "--format", "x"], ["snapshot", "--bogus"], ["why"], []])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    done = gpufleet(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_unreachable_agent_exits_with_1() -> None:
    done = gpufleet("snapshot", "--agent", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "http://127.0.0.1:1/v1/snapshot" in done.stderr
    assert "Traceback" not in done.stderr


def test_address_in_use_exits_with_1(tmp_path: Path, agent_url: str) -> None:
    listen = agent_url.removeprefix("http://")
    done = gpufleet("agent", "--listen", listen, "--state", str(tmp_path))
    assert done.returncode == 1
    assert f"cannot listen on {listen}: Address already in use" in done.stderr


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version(arguments: list[str]) -> None:
    done = gpufleet(*arguments)
    assert (done.returncode, done.stdout) == (0, f"gpufleet {__version__}\n")


def test_version_as_json_names_the_formats() -> None:
    document = json.loads(gpufleet("version", "--json").stdout)
    assert document["version"] == __version__
    assert document["snapshot"] == "gpufleet.snapshot/1"


@pytest.mark.parametrize("daemon", ["agent", "hub"])
def test_config_print_is_toml_with_the_source_of_each_value(daemon: str) -> None:
    done = gpufleet("config", "print", "--for", daemon, env={f"GPUFLEET_{daemon.upper()}_LOG_LEVEL": "debug"})
    assert done.returncode == 0
    assert tomllib.loads(done.stdout)["log_level"] == "debug"
    assert f'log_level = "debug"  # GPUFLEET_{daemon.upper()}_LOG_LEVEL' in done.stdout
    assert "# default" in done.stdout


def test_config_print_as_json() -> None:
    document = json.loads(gpufleet("config", "print", "--json").stdout)
    assert document["lanes.fast"] == {"value": 10.0, "origin": "default"}


@pytest.mark.parametrize("daemon", ["agent", "hub"])
def test_config_validate_reports_a_valid_configuration(daemon: str) -> None:
    done = gpufleet("config", "validate", "--for", daemon)
    assert (done.returncode, done.stdout) == (0, f"the {daemon}'s configuration is valid\n")


def test_ctrl_c_exits_with_130(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "from gpufleet.cli.app import app\n"
        "from gpufleet.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background test runs ignore SIGINT
        "@app.command('wait')\n"
        "def wait() -> None:\n"
        "    print('waiting', flush=True)\n"
        "    time.sleep(60)\n"
        "sys.argv = ['gpufleet', 'wait']\n"
        "main()\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as sink, subprocess.Popen([sys.executable, "-c", script], stdout=sink, stderr=sink) as process:
        wait_until(lambda: b"waiting" in log.read_bytes(), what="the command to run")
        process.send_signal(signal.SIGINT)
        assert process.wait(20 * PATIENCE) == 130
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("command", ["snapshot", "why", "doctor", "agent", "hub", "config", "query", "allocation"])
def test_every_command_has_help(command: str) -> None:
    done = gpufleet(command, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout


def test_missing_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from gpufleet.cli.main import main\n"
        "sys.argv = ['gpufleet', 'agent', '--listen', '127.0.0.1:0']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "gpufleet: uvicorn is not installed: install gpufleet[agent] for an agent, gpufleet[hub] for a hub\n"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("GPUFLEET_HUB_AUTH", "tokens"), ("GPUFLEET_AGENT_TOKEN_FILE", "{folder}/token")],
)
def test_up_refuses_a_configuration_with_tokens(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "token").write_text("t" * 40)
    done = gpufleet("up", "--state", str(tmp_path), env={name: value.format(folder=tmp_path)})
    assert (done.returncode, "run `gpufleet hub` and `gpufleet agent`" in done.stderr) == (2, True)


def test_insecure_listen_address_is_refused_by_both_daemons() -> None:
    for daemon in ("hub", "agent"):
        done = gpufleet(daemon, "--listen", "0.0.0.0:0")
        assert done.returncode == 2
        assert "insecure_listen" in done.stderr
