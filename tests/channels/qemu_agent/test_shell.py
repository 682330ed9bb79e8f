"""Guest shell through the QEMU guest agent: commands, files, and invalid or missing answers."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.channels.guest_shell import ShellExec, ShellFiles
from gpufleet.channels.qemu_agent import QemuAgentShell, protocol
from gpufleet.channels.qemu_agent.protocol import QemuAgentConnection
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult, FetchPlan
from tests.fakes.qemu_agent import FakeQemuAgent


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeQemuAgent]:
    (tmp_path / "bin").mkdir()
    async with FakeQemuAgent(tmp_path / "qga.sock", f"{tmp_path / 'bin'}:{os.environ['PATH']}") as one:
        install(one, "nvidia-smi", "echo out; echo err >&2; exit 9")
        yield one


def install(agent: FakeQemuAgent, name: str, text: str) -> None:
    """Install a program in the guest's PATH."""
    program = agent.socket.parent / "bin" / name
    program.with_suffix(".new").write_text(f"#!/bin/sh\n{text}\n")
    program.with_suffix(".new").chmod(0o755)
    program.with_suffix(".new").replace(program)


def read(file: Path) -> list[str]:
    return file.read_text().split()


async def list_gpus(one: QemuAgentShell, *, seconds: float = 20, most: int = 1 << 20) -> ExecResult:
    return await ShellExec(one).run(("nvidia-smi", "-L"), timeout_seconds=seconds, max_output_bytes=most)


async def problem(agent: FakeQemuAgent, **bounds: float) -> ChannelProblem:
    with pytest.raises(ChannelError) as caught:
        await list_gpus(QemuAgentShell(agent.socket), **bounds)  # type: ignore[arg-type]
    return caught.value.problem


async def test_commands_and_files_are_read_completely(agent: FakeQemuAgent) -> None:
    one = QemuAgentShell(agent.socket)
    assert await list_gpus(one) == ExecResult(exit_code=9, stdout=b"out\n", stderr=b"err\n")
    fetched = await ShellFiles(one).fetch(FetchPlan(files=("/proc/loadavg", "/nope"), filesystems=("/",)))
    assert set(fetched.files) == {"/proc/loadavg"}
    assert fetched.errors == {"/nope": "ENOENT"}
    await one.close()


async def test_socket_is_shared_with_another_client(agent: FakeQemuAgent) -> None:
    one, other = QemuAgentShell(agent.socket), QemuAgentShell(agent.socket)
    done = await asyncio.gather(*(list_gpus(each) for each in (one, other, one, other)))
    assert {each.exit_code for each in done} == {9}


async def test_leftover_answer_of_another_client_is_skipped(agent: FakeQemuAgent) -> None:
    agent.stale = json.dumps({"return": {"pid": 1}}).encode() + b'\n\xff{"return": 5}\n{"return'
    assert (await list_gpus(QemuAgentShell(agent.socket))).stdout == b"out\n"


async def test_answers_may_come_byte_by_byte(agent: FakeQemuAgent) -> None:
    agent.dribble = True
    assert (await list_gpus(QemuAgentShell(agent.socket))).stdout == b"out\n"


@pytest.mark.parametrize("command", ["guest-exec", "guest-exec-status"])
async def test_disabled_command_is_not_tried(agent: FakeQemuAgent, command: str) -> None:
    agent.disabled = {command}
    assert await problem(agent) is ChannelProblem.NOT_ENABLED
    assert "guest-exec" not in agent.commands


async def test_frozen_guest_is_not_up_and_recovers(agent: FakeQemuAgent) -> None:
    agent.frozen = True
    one = QemuAgentShell(agent.socket, sync_seconds=0.2)
    with pytest.raises(ChannelError) as caught:
        await list_gpus(one)
    assert caught.value.problem is ChannelProblem.NOT_UP
    agent.frozen = False
    assert (await list_gpus(one)).stdout == b"out\n"


async def test_no_socket_is_no_virtual_machine(tmp_path: Path) -> None:
    with pytest.raises(ChannelError) as caught:
        await QemuAgentShell(tmp_path / "gone.sock").open()
    assert caught.value.problem is ChannelProblem.NO_SUCH_VM


async def test_hanging_command_is_not_repeated_until_it_ended(agent: FakeQemuAgent) -> None:
    install(agent, "timeout", 'shift 3; exec "$@"')
    started = agent.socket.with_name("started")
    install(agent, "nvidia-smi", f"echo $$ >>{started}; exec sleep 600")
    one = QemuAgentShell(agent.socket)
    for _ in range(3):
        with pytest.raises(ChannelTimeoutError):
            await list_gpus(one, seconds=1)
    (number,) = read(started)
    assert (await ShellFiles(one).fetch(FetchPlan(files=("/proc/loadavg",)))).files, "other commands are not affected"
    os.kill(int(number), 9)
    install(agent, "nvidia-smi", "echo well")
    while True:  # until the agent has seen the end
        try:
            assert (await list_gpus(one, seconds=5)).stdout == b"well\n"
            break
        except ChannelTimeoutError:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"[" * 100_000 + b"\n", ChannelProblem.PROTOCOL),
        (b"rubbish\n", ChannelProblem.PROTOCOL),
        (b'{"return": 7}\n', ChannelProblem.PROTOCOL),
        (b'{"return": {"pid": "one"}}\n', ChannelProblem.PROTOCOL),
        (b'{"error": {"class": "GenericError", "desc": "\\u001b[2Jno"}}\n', ChannelProblem.FAILED),
        (b'{"error": 5}\n', ChannelProblem.PROTOCOL),
        (b"x" * (protocol.MAX_LINE_BYTES + 1), ChannelProblem.TOO_LARGE),
    ],
)
async def test_invalid_answer_is_a_named_error(agent: FakeQemuAgent, answer: bytes, found: ChannelProblem) -> None:
    agent.replace = {"guest-exec": answer}
    with pytest.raises(ChannelError) as caught:
        await list_gpus(QemuAgentShell(agent.socket))
    assert caught.value.problem is found
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (b'{"return": {"exited": true, "exitcode": 0, "out-data": "eHh4", "out-truncated": true}}\n', "TOO_LARGE"),
        (b'{"return": {"exited": true, "exitcode": 0, "out-data": "%%%"}}\n', "PROTOCOL"),
        (b'{"return": 3}\n', "PROTOCOL"),
    ],
)
async def test_truncated_or_invalid_output_is_refused(agent: FakeQemuAgent, status: bytes, found: str) -> None:
    agent.replace = {"guest-exec-status": status}
    assert await problem(agent) is ChannelProblem[found]


async def test_output_is_bounded(agent: FakeQemuAgent) -> None:
    install(agent, "nvidia-smi", "head -c 100000 /dev/zero")
    assert await problem(agent, most=1000) is ChannelProblem.TOO_LARGE


class Recorded:
    """Stream that returns recorded bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def send(self, data: bytes) -> None: ...

    async def receive(self, most: int) -> bytes:
        piece, self.data = self.data[:7], self.data[7:]
        return piece

    async def receive_exactly(self, count: int) -> bytes:
        raise NotImplementedError

    async def close(self) -> None: ...


@given(st.binary(max_size=200))
async def test_any_bytes_end_in_a_named_error(data: bytes) -> None:
    with pytest.raises(ChannelError):
        await QemuAgentConnection(Recorded(data), "x").synchronise()
    with pytest.raises(ChannelError):
        await QemuAgentConnection(Recorded(data), "x").execute("guest-info")
