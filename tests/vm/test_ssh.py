"""SSH into a real guest: stand-in nvidia-smi, /proc, and a frozen guest."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpufleet.channels.guest_shell import ShellExec, ShellFiles
from gpufleet.channels.ssh.shell import SshShell
from gpufleet.channels.ssh.target import ConfiguredHostKey, SshTarget
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import ExecResult, FetchPlan
from tests.vm.machine import VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

LONG, SHORT = 60.0, 3.0


@asynccontextmanager
async def shell_of(vm: VirtualMachine, host_key: str, seconds: float = LONG) -> AsyncIterator[SshShell]:
    target = SshTarget(
        host="127.0.0.1",
        port=vm.ssh_port,
        user="root",
        key_file=vm.key_file,
        connect_seconds=seconds,
        login_seconds=seconds,
    )
    shell = SshShell(target, ConfiguredHostKey(host_key))
    try:
        yield shell
    finally:
        await shell.close()


async def list_gpus(shell: SshShell, seconds: float = LONG) -> ExecResult:
    return await ShellExec(shell).run(("nvidia-smi", "-L"), timeout_seconds=seconds, max_output_bytes=1 << 20)


async def test_gpus_and_files_are_read_from_the_guest(vm: VirtualMachine) -> None:
    async with shell_of(vm, vm.host_key) as shell:
        listed = await list_gpus(shell)
        fetched = await ShellFiles(shell, timeout_seconds=LONG).fetch(FetchPlan(files=("/proc/stat", "/proc/meminfo")))
    assert listed.exit_code == 0
    assert listed.stdout.startswith(b"GPU 0: NVIDIA H100")
    kib = int(fetched.files["/proc/meminfo"].split()[1])
    assert 256 << 10 < kib < 384 << 10  # of the guest, not of this host
    assert fetched.files["/proc/stat"].count(b"\ncpu") == 1


async def test_frozen_guest_times_out(vm: VirtualMachine) -> None:
    async with shell_of(vm, vm.host_key) as shell:
        await list_gpus(shell)
        vm.freeze()
        try:
            with pytest.raises(ChannelError) as caught:
                await list_gpus(shell, SHORT)
            assert caught.value.problem is ChannelProblem.TIMEOUT
            async with shell_of(vm, vm.host_key, SHORT) as other:
                with pytest.raises(ChannelError) as dialled:
                    await list_gpus(other, SHORT)
            assert dialled.value.problem is ChannelProblem.TIMEOUT
        finally:
            vm.thaw()
    async with shell_of(vm, vm.host_key) as shell:
        assert (await list_gpus(shell)).exit_code == 0
