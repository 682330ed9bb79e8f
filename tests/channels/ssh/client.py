"""SSH shells of a real sshd, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpufleet.channels.guest_shell import ShellExec
from gpufleet.channels.ssh.shell import SshShell
from gpufleet.channels.ssh.target import ConfiguredHostKey, HostKeyPin, SshTarget
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import ExecResult
from tests.support.sshd import USER, Guest


def target(guest: Guest, *, port: int | None = None, seconds: float = 15) -> SshTarget:
    return SshTarget(
        host="127.0.0.1",
        port=port or guest.port,
        user=USER,
        key_file=guest.key_file,
        connect_seconds=seconds,
        login_seconds=seconds,
    )


@asynccontextmanager
async def shell_of(guest: Guest, pin: HostKeyPin | None = None) -> AsyncIterator[SshShell]:
    shell = SshShell(target(guest), pin or ConfiguredHostKey(guest.host_key))
    try:
        yield shell
    finally:
        await shell.close()


async def list_gpus(shell: SshShell, *, timeout_seconds: float = 20, max_output_bytes: int = 1 << 20) -> ExecResult:
    return await ShellExec(shell).run(
        ("nvidia-smi", "-L"), timeout_seconds=timeout_seconds, max_output_bytes=max_output_bytes
    )


async def problem(shell: SshShell, **bounds: int) -> ChannelProblem:
    with pytest.raises(ChannelError) as caught:
        await list_gpus(shell, **bounds)
    return caught.value.problem
