"""Agent that reads one virtual machine over every channel, each configured as a separate guest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.machine import UNANSWERED_STATES
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import wait_until
from tests.vm.machine import ENGINE_PORT, PAGE_PORT, VirtualMachine
from tests.vm.test_dcgm import dialer_of
from tests.vm.test_dcgm import reading as engine_of
from tests.vm.test_ssh import list_gpus, shell_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

CHANNELS = ("dcgm", "ssh", "qemu_agent", "metrics")
SECONDS = 300.0
"""Timeout for an emulated processor that starts programs for each answer, beside other tests."""


def channels(vm: VirtualMachine) -> dict[str, str]:
    return {
        "dcgm": f'address = "hybrid-vsock://{vm.vsock}:{ENGINE_PORT}"',
        "ssh": f'address = "127.0.0.1:{vm.ssh_port}"\nuser = "root"\nkey_file = "{vm.key_file}"',
        "qemu_agent": f'socket = "{vm.agent}"',
        "metrics": f'address = "hybrid-vsock://{vm.vsock}:{PAGE_PORT}"',
    }


class Host:
    """Agent with one guest file per channel, as if each channel led to another virtual machine."""

    def __init__(self, folder: Path, vm: VirtualMachine) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        guests = folder / "guests.d"
        guests.mkdir()
        for number, (kind, channel) in enumerate(channels(vm).items()):
            (guests / f"{kind}.toml").write_text(
                f'name = "{kind}"\nvm_uuid = "6f1ed002-ab5b-4f4f-8f2c-00000000000{number}"\n'
                f'[[channels]]\ntype = "{kind}"\n{channel}\n'
            )
        (folder / "agent.toml").write_text(
            f'guest_folder = "{guests}"\n[readers.nvml]\nenabled = false\n[lanes]\nfast = 3.0\n'
        )
        arguments = ["agent", "--config", str(folder / "agent.toml"), "--state", str(folder / "state")]
        self.agent = Gpufleet([*arguments, "--listen", self.url.removeprefix("http://")], folder / "agent.log")

    def guests(self) -> dict[str, Any]:
        return {guest["name"]: guest for guest in get_json(f"{self.url}/v1/snapshot")["guests"]}

    def gpus(self) -> dict[str, list[Any]]:
        return {
            name: [one for one in guest["devices"] if one["kind"] == "gpu"] for name, guest in self.guests().items()
        }

    def states(self) -> dict[str, str]:
        return {name: guest["state"] for name, guest in self.guests().items()}

    def wait_for(self, reached: Callable[[dict[str, str]], bool], what: str) -> None:
        try:
            wait_until(lambda: reached(self.states()), seconds=SECONDS, what=what)
        except AssertionError as error:
            states = {name: (guest["state"], guest.get("detail", "")) for name, guest in self.guests().items()}
            raise AssertionError(f"{error}; states: {states}") from None


async def test_agent_follows_reboot_and_replacement_of_a_guest(vm: VirtualMachine, tmp_path: Path) -> None:
    """One test for freeze, reboot and replacement, because each boot takes seconds of processor time."""
    host = Host(tmp_path, vm)
    with host.agent:
        host.agent.wait_for(f"{host.url}/readyz")
        host.wait_for(answers, "every channel to answer")
        gpus = host.gpus()
        power = [gpu["readings"]["gpu_power_watts"]["value"] for gpu in gpus["dcgm"]]
        assert power == [312.25 + index for index in range(vm.gpus)]
        assert all(gpu["side"] == "guest" for found in gpus.values() for gpu in found)
        assert all(gpus.values())
        assert len({gpu["uuid"] for name in ("ssh", "qemu_agent") for gpu in gpus[name]}) == vm.gpus
        assert 'vm_name="dcgm"' in get_text(f"{host.url}/metrics")

        vm.freeze()
        try:
            host.wait_for(lambda states: set(states.values()) <= set(UNANSWERED_STATES), "no channel to answer")
        finally:
            vm.thaw()
        host.wait_for(answers, "every channel to answer again")

        pinned = vm.host_key
        async with engine_of(vm) as engine:
            await engine.read(Lane.FAST)
            vm.stop()
            with pytest.raises(ReaderError):
                await engine.read(Lane.FAST)
        with pytest.raises(ChannelError) as dialled:
            await dialer_of(vm).dial()
        assert dialled.value.problem is ChannelProblem.NO_SUCH_VM
        assert await problem_of_ssh(vm, pinned) not in (None, ChannelProblem.IDENTITY_MISMATCH)
        vm.start()
        assert await problem_of_ssh(vm, pinned) is None
        host.wait_for(answers, "every channel to answer after a reboot")

        vm.stop()
        vm.become("guest-b", gpus=vm.gpus + 1)
        vm.start()
        assert await problem_of_ssh(vm, pinned) is ChannelProblem.IDENTITY_MISMATCH
        others = {channel: "ok" for channel in CHANNELS if channel != "ssh"}
        host.wait_for(lambda states: states == {**others, "ssh": "identity_mismatch"}, "the other host key")
        async with engine_of(vm) as engine:
            assert len((await engine.read(Lane.STATIC)).samples) >= vm.gpus
        wait_until(lambda: len(host.gpus()["dcgm"]) == vm.gpus, seconds=SECONDS, what="the other machine's GPUs")
        assert host.agent.stop() == 0


def answers(states: dict[str, str]) -> bool:
    return states == dict.fromkeys(CHANNELS, "ok")


async def problem_of_ssh(vm: VirtualMachine, host_key: str) -> ChannelProblem | None:
    """Log in with only this host key accepted. Return the problem, or None."""
    async with shell_of(vm, host_key) as shell:
        try:
            done = await list_gpus(shell)
        except ChannelError as error:
            return error.problem
    assert done.exit_code == 0
    return None
