"""Local commands: timeout with all child processes, output limits, no shell."""

import asyncio
import shutil
import signal
import sys
from pathlib import Path

import pytest

from gpufleet.channels.local import LocalExec
from gpufleet.model.errors import ChannelError, ChannelTimeoutError
from gpufleet.ports.channel import Exec, ExecResult
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi
from tests.support.waiting import wait_until


def channel(smi: FakeNvidiaSmi, *, grace_seconds: float = 0.3) -> Exec:
    return LocalExec(environment=smi.environment, grace_seconds=grace_seconds)


async def run(exec_: Exec, *argv: str, timeout_seconds: float = 60, max_output_bytes: int = 1 << 20) -> ExecResult:
    return await exec_.run(argv, timeout_seconds=timeout_seconds, max_output_bytes=max_output_bytes)


@pytest.fixture
def smi(tmp_path: Path) -> FakeNvidiaSmi:
    return FakeNvidiaSmi(tmp_path)


async def test_output_errors_and_exit_code_come_back(smi: FakeNvidiaSmi) -> None:
    smi.fault("list", stdout="out", stderr="err", code=9)
    assert await run(channel(smi), "nvidia-smi", "-L") == ExecResult(exit_code=9, stdout=b"out", stderr=b"err")


async def test_arguments_are_not_parsed_by_a_shell(smi: FakeNvidiaSmi) -> None:
    await run(channel(smi), "nvidia-smi", "-L; touch $HOME/x", "`id`")
    assert smi.calls == ["-L; touch $HOME/x `id`"]


async def test_missing_command_exits_with_127() -> None:
    assert (await run(LocalExec(), "gpufleet-no-such-command")).exit_code == 127


async def test_command_without_permission_exits_with_126(smi: FakeNvidiaSmi) -> None:
    smi.path.chmod(0o644)
    alone = LocalExec(environment={"PATH": str(smi.bin)})
    assert (await run(alone, "nvidia-smi")).exit_code == 126


async def test_missing_interpreter_exits_with_127(smi: FakeNvidiaSmi) -> None:
    smi.path.write_text("#!/nowhere/python\n")
    assert (await run(channel(smi), "nvidia-smi")).exit_code == 127


async def test_signal_is_an_exit_code_above_128() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert (await run(LocalExec(), sys.executable, "-c", code)).exit_code == 128 + signal.SIGKILL


async def test_output_over_the_limit_is_an_error(smi: FakeNvidiaSmi) -> None:
    smi.fault("list", endless=True)
    with pytest.raises(ChannelError, match="1000"):
        await run(channel(smi), "nvidia-smi", "-L", max_output_bytes=1000)


@pytest.mark.parametrize("ignore_sigterm", [False, True])
async def test_hanging_command_is_ended_with_its_children(smi: FakeNvidiaSmi, ignore_sigterm: bool) -> None:
    smi.fault("list", hang=True, child="started", ignore_sigterm=ignore_sigterm)
    before = children()
    with pytest.raises(ChannelTimeoutError):
        await run(channel(smi), "nvidia-smi", "-L", timeout_seconds=1)
    assert len(smi.calls) == 1
    wait_until(lambda: children() <= before, what="all processes to end")


async def test_cancelled_command_is_ended(smi: FakeNvidiaSmi) -> None:
    smi.fault("list", hang=True)
    before = children()
    task = asyncio.create_task(run(channel(smi), "nvidia-smi", "-L"))
    while not smi.calls:  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_until(lambda: children() <= before, what="all processes to end")


async def test_commands_run_with_the_c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    shown = await run(LocalExec(), "env")
    assert b"LC_ALL=C\n" in shown.stdout
    assert shutil.which("env")


def children() -> set[int]:
    """Return processes of this user that run the stand-in or its child."""
    found: set[int] = set()
    for name in [entry.name for entry in Path("/proc").iterdir()]:
        if name.isdigit():
            try:
                line = Path("/proc", name, "cmdline").read_bytes()
                state = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and (b"/smi/nvidia-smi" in line or b"print('started')" in line):
                found.add(int(name))
    return found
