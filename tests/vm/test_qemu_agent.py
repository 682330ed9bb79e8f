"""QEMU guest agent of a real guest: commands, files, other clients on its socket, and a frozen guest."""

import asyncio
import json

import pytest

from gpufleet.channels.guest_shell import ShellExec, ShellFiles
from gpufleet.channels.qemu_agent import QemuAgentShell
from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import ExecResult, FetchPlan
from gpufleet.readers.host import HostReader
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.runtime import SystemClock
from tests.vm.machine import VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

LONG = 60.0


def shell_of(vm: VirtualMachine, seconds: float = LONG) -> QemuAgentShell:
    return QemuAgentShell(vm.agent, sync_seconds=seconds)


async def list_gpus(shell: QemuAgentShell, seconds: float = LONG) -> ExecResult:
    return await ShellExec(shell).run(("nvidia-smi", "-L"), timeout_seconds=seconds, max_output_bytes=1 << 20)


async def test_gpus_and_files_are_read_from_the_guest(vm: VirtualMachine) -> None:
    shell = shell_of(vm)
    listed = await list_gpus(shell)
    assert (listed.exit_code, listed.stdout[:14]) == (0, b"GPU 0: NVIDIA ")
    fetched = await ShellFiles(shell, timeout_seconds=LONG).fetch(FetchPlan(files=("/proc/meminfo", "/nope")))
    kib = int(fetched.files["/proc/meminfo"].split()[1])
    assert 256 << 10 < kib < 384 << 10  # of the guest, not of this host
    assert fetched.errors == {"/nope": "ENOENT"}


async def test_host_readers_read_the_guest(vm: VirtualMachine) -> None:
    shell = shell_of(vm)
    gpus = await NvidiaSmiReader(ShellExec(shell), SystemClock(), timeout_seconds=LONG).read(Lane.FAST)
    assert [one.view.kind for one in gpus.samples if one.view is not None] == ["gpu"] * vm.gpus
    host = await HostReader(ShellFiles(shell, timeout_seconds=LONG), SystemClock()).read(Lane.FAST)
    assert host.samples[0].values["host_cpus"] == 1
    assert host.errors == ()


async def test_concurrent_clients_take_turns(vm: VirtualMachine) -> None:
    done = await asyncio.gather(*(list_gpus(shell_of(vm)) for _ in range(3)))
    assert {one.exit_code for one in done} == {0}


async def test_leftover_answer_of_another_client_is_skipped(vm: VirtualMachine) -> None:
    other = await UnixDialer(vm.agent).dial()
    await other.send(json.dumps({"execute": "guest-get-osinfo"}).encode() + b'\n{"execute": "guest-')
    await other.close()
    assert (await list_gpus(shell_of(vm))).exit_code == 0


async def test_frozen_guest_is_not_up_and_answers_after_it(vm: VirtualMachine) -> None:
    shell = shell_of(vm, 2.0)
    vm.freeze()
    try:
        with pytest.raises(ChannelError) as caught:
            await list_gpus(shell)
        assert caught.value.problem is ChannelProblem.NOT_UP
    finally:
        vm.thaw()
    assert (await list_gpus(shell_of(vm))).exit_code == 0
