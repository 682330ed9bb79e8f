"""Stopping of daemons: the second signal, and state folders that are deleted while a daemon runs."""

import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from tests.fakes.batches import body
from tests.support.hub_state import prepare_state
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import PATIENCE

STUBBORN = """
import asyncio, signal, sys, time
from gpufleet.cli.daemon import run_until_stopped

async def daemon(stop):
    print("ready", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    if sys.argv[1] == "blocked":
        time.sleep(3600)
    await asyncio.sleep(3600)

run_until_stopped(daemon)
"""


@pytest.mark.parametrize("loop", ["waiting", "blocked"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_a_daemon_at_once(loop: str, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN, loop], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(number)
        assert process.wait(5 * PATIENCE) == -number


def post(url: str, content: bytes) -> None:
    """Post a batch; raises unless it is acknowledged."""
    request = urllib.request.Request(
        f"{url}/v1/batches", data=content, headers={"Content-Type": CONTENT_TYPE}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=10 * PATIENCE) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("role", "flush_seconds", "signalled"),
    [("hub", 1, False), ("hub", 60, True), ("relay", 1, False), ("relay", 1, True)],
)
def test_daemon_whose_state_is_deleted_ends_with_an_error(
    tmp_path: Path, role: str, flush_seconds: int, signalled: bool
) -> None:
    """A batch is queued: the hub flushes once a minute, or the next hub of the relay is down."""
    state, port = tmp_path / "state", free_port()
    url = f"http://127.0.0.1:{port}"
    config = tmp_path / "hub.toml"
    config.write_text(f"[flush]\ninterval_seconds = {flush_seconds}\n")
    arguments = ["hub", "--config", str(config), "--listen", f"127.0.0.1:{port}", "--state", str(state)]
    if role == "relay":
        arguments += ["--relay-to", f"http://127.0.0.1:{free_port()}"]
    else:
        prepare_state(state)
    with Gpufleet(arguments, tmp_path / "log") as daemon:
        daemon.wait_for(f"{url}/healthz", 100)
        post(url, body(1, time.time_ns()))
        shutil.rmtree(state, ignore_errors=True)
        if signalled:
            daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(30 * PATIENCE) == 1, daemon.log.read_text()
        assert "Traceback" not in daemon.log.read_text()
