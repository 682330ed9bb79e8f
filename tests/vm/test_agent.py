"""One virtual machine, read by an agent in all its ways at once: each way as a guest of its own, to see it alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.model.machine import SILENT
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import wait_until
from tests.vm.machine import ENGINE_PORT, PAGE_PORT, VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

WAYS = ("dcgm", "ssh", "qemu_agent", "metrics")
SECONDS = 150.0
"""An emulated processor that starts Python for each answer, beside other tests."""


def channels(vm: VirtualMachine) -> dict[str, str]:
    return {
        "dcgm": f'address = "hybrid-vsock://{vm.vsock}:{ENGINE_PORT}"',
        "ssh": f'address = "127.0.0.1:{vm.ssh_port}"\nuser = "root"\nkey_file = "{vm.key_file}"',
        "qemu_agent": f'socket = "{vm.agent}"',
        "metrics": f'address = "hybrid-vsock://{vm.vsock}:{PAGE_PORT}"',
    }


class Host:
    """An agent that is told of the machine once for each way; every description is of another virtual machine to it."""

    def __init__(self, folder: Path, vm: VirtualMachine) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        told = folder / "guests.d"
        told.mkdir()
        for number, (way, channel) in enumerate(channels(vm).items()):
            (told / f"{way}.toml").write_text(
                f'name = "{way}"\nvm_uuid = "6f1ed002-ab5b-4f4f-8f2c-00000000000{number}"\n'
                f'[[channels]]\ntype = "{way}"\n{channel}\n'
            )
        (folder / "agent.toml").write_text(
            f'guest_folder = "{told}"\n[readers.nvml]\nenabled = false\n[lanes]\nfast = 5.0\nslow = 10.0\n'
        )
        arguments = ["agent", "--config", str(folder / "agent.toml"), "--state", str(folder / "state")]
        self.agent = Gpufleet([*arguments, "--listen", self.url.removeprefix("http://")], folder / "agent.log")

    def guests(self) -> dict[str, Any]:
        return {guest["name"]: guest for guest in get_json(f"{self.url}/v1/snapshot")["guests"]}

    def states(self) -> dict[str, str]:
        return {name: guest["state"] for name, guest in self.guests().items()}

    def wait_for(self, wanted: Callable[[dict[str, str]], bool], what: str) -> None:
        try:
            wait_until(lambda: wanted(self.states()), seconds=SECONDS, what=what)
        except AssertionError as error:
            told = {name: (guest["state"], guest.get("detail", "")) for name, guest in self.guests().items()}
            raise AssertionError(f"{error}; it is {told}") from None


@pytest.fixture
def machine(parts: None) -> Iterator[VirtualMachine]:
    with VirtualMachine() as one:
        yield one


def test_a_machine_in_all_its_ways(machine: VirtualMachine, tmp_path: Path) -> None:
    host = Host(tmp_path, machine)
    with host.agent:
        host.agent.wait_for(f"{host.url}/readyz")
        host.wait_for(lambda states: set(states.values()) == {"ok"} and len(states) == len(WAYS), "every way to answer")
        guests = host.guests()
        gpus = {name: [one for one in guest["devices"] if one["kind"] == "gpu"] for name, guest in guests.items()}
        assert [gpu["readings"]["gpu_power_watts"]["value"] for gpu in gpus["dcgm"]] == [312.25, 313.25]
        assert all(gpu["side"] == "guest" for found in gpus.values() for gpu in found)
        assert all(gpus.values())
        assert len({gpu["uuid"] for name in ("ssh", "qemu_agent") for gpu in gpus[name]}) == 2
        assert 'vm_name="dcgm"' in get_text(f"{host.url}/metrics")

        machine.freeze()
        try:
            host.wait_for(lambda states: set(states.values()) <= set(SILENT), "every way to fall silent")
        finally:
            machine.thaw()
        host.wait_for(lambda states: set(states.values()) == {"ok"}, "every way to answer again")

        machine.stop()
        machine.new_host_key()
        machine.start()
        others = {way: "ok" for way in WAYS if way != "ssh"}
        host.wait_for(lambda states: states == {**others, "ssh": "identity_mismatch"}, "a stranger's host key")
        host.agent.stop()
