"""SSH into a real guest: its stand-in nvidia-smi and its own /proc, its host key, and what becomes of both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpufleet.channels.guest_shell import ShellExec, ShellFiles
from gpufleet.channels.ssh.shell import SshShell
from gpufleet.channels.ssh.target import GivenPin, SshTarget
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import ExecResult, FetchPlan
from tests.vm.machine import VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PATIENT, SHORT = 60.0, 3.0


@asynccontextmanager
async def shell_of(vm: VirtualMachine, host_key: str, seconds: float = PATIENT) -> AsyncIterator[SshShell]:
    target = SshTarget(
        host="127.0.0.1",
        port=vm.ssh_port,
        user="root",
        key_file=vm.key_file,
        connect_seconds=seconds,
        login_seconds=seconds,
    )
    shell = SshShell(target, GivenPin(host_key))
    try:
        yield shell
    finally:
        await shell.close()


async def list_gpus(shell: SshShell, seconds: float = PATIENT) -> ExecResult:
    return await ShellExec(shell).run(("nvidia-smi", "-L"), timeout_seconds=seconds, max_output_bytes=1 << 20)


async def test_its_gpus_and_files_are_its_own(vm: VirtualMachine) -> None:
    async with shell_of(vm, vm.host_key) as shell:
        listed = await list_gpus(shell)
        fetched = await ShellFiles(shell, timeout_seconds=PATIENT).fetch(
            FetchPlan(files=("/proc/stat", "/proc/meminfo"))
        )
    assert listed.exit_code == 0
    assert listed.stdout.startswith(b"GPU 0: NVIDIA H100")
    kib = int(fetched.files["/proc/meminfo"].split()[1])
    assert 256 << 10 < kib < 384 << 10  # of the guest, not of this host
    assert fetched.files["/proc/stat"].count(b"\ncpu") == 1


async def test_a_frozen_guest_is_late(vm: VirtualMachine) -> None:
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


async def test_a_reboot_with_another_host_key_and_another_machine_at_the_address(parts: None) -> None:
    with VirtualMachine("first") as first:
        pinned = first.host_key
        async with shell_of(first, pinned) as shell:
            assert (await list_gpus(shell)).exit_code == 0
        first.stop()
        async with shell_of(first, pinned) as shell:
            with pytest.raises(ChannelError) as caught:
                await list_gpus(shell)
        assert caught.value.problem is not ChannelProblem.IDENTITY_MISMATCH
        first.start()
        async with shell_of(first, pinned) as shell:
            assert (await list_gpus(shell)).exit_code == 0  # the same key: a reboot, and no more
        first.stop()
        with VirtualMachine("second", at=first) as second:
            async with shell_of(second, pinned) as shell:
                with pytest.raises(ChannelError) as other:
                    await list_gpus(shell)
            assert other.value.problem is ChannelProblem.IDENTITY_MISMATCH
