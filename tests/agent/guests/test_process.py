"""An agent that reads guests: real processes, real sshd, files that come and go."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.guest_smi import NAME, GuestSmi, uuid_of
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.sshd import USER, Guest
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

CONFIG = """
node = "node-1"
guest_folder = "{folder}"

[lanes]
fast = 1.0
slow = 2.0
static = 3.0

[readers.nvml]
enabled = false
"""


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


class Host:
    """An agent, and the virtual machines of its host."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.kept, self.stack = folder / "guests.d", folder / "state", stack
        self.folder.mkdir()
        (folder / "agent.toml").write_text(CONFIG.format(folder=self.folder))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["--config", str(folder / "agent.toml"), "--listen", f"127.0.0.1:{port}"]
        process = Gpufleet(["agent", *arguments, "--state", str(self.kept)], folder / "agent.log", {})
        self.process = stack.enter_context(process)
        self.process.wait_for(f"{self.url}/readyz")

    def boot(self, number: int, *, gpus: int = 1, expected: int | None = None) -> tuple[Guest, GuestSmi]:
        """Boot a virtual machine, and tell the agent of it."""
        guest = self.stack.enter_context(Guest())
        smi = GuestSmi(guest, number=number, gpus=gpus)
        self.tell(number, guest, gpus=expected if expected is not None else gpus)
        return guest, smi

    def tell(self, number: int, guest: Guest, *, gpus: int = 1) -> None:
        text = (
            f'name = "vm-{number}"\nnamespace = "ml"\nvm_uuid = "{uid(number)}"\ngpus = {gpus}\n'
            f'[[channels]]\ntype = "ssh"\naddress = "127.0.0.1:{guest.port}"\n'
            f'user = "{USER}"\nkey_file = "{guest.key_file}"\n'
        )
        self.put(f"{number}.toml", text)

    def put(self, name: str, text: str) -> None:
        (self.folder / f".{name}").write_text(text)
        (self.folder / f".{name}").replace(self.folder / name)

    def guests(self) -> dict[str, Any]:
        return {one["vm_uuid"]: one for one in get_json(f"{self.url}/v1/snapshot")["guests"]}

    def state(self, number: int) -> str:
        return str(self.guests().get(uid(number), {}).get("state", "none"))

    def wait_for(self, number: int, state: str) -> dict[str, Any]:
        wait_until(lambda: self.state(number) == state, seconds=40, what=f"vm-{number} to be {state}")
        found: dict[str, Any] = self.guests()[uid(number)]
        return found


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(tmp_path, stack)


def test_a_guest_comes_is_read_and_goes(host: Host) -> None:
    host.boot(1, gpus=2)
    wait_until(lambda: [one.get("name") for one in found(host, 1)] == [NAME, NAME], what="names of its GPUs")
    one = host.wait_for(1, "ok")
    assert [device["uuid"] for device in one["devices"]] == [uuid_of(1, 0), uuid_of(1, 1)]
    assert {device["side"] for device in one["devices"]} == {"guest"}
    assert one["machine"] == {"name": "ml/vm-1", "kind": "guest", "system_uuid": uid(1), "hypervisor": "node-1"}
    host_readings = one["host"]["readings"]
    assert host_readings["host_memory_total_bytes"]["value"] > 0
    stamps = [host_readings[f"guest_{name}_timestamp_seconds"]["value"] for name in STAMPS]
    assert stamps == sorted(stamps)
    assert get_json(f"{host.url}/v1/snapshot")["capabilities"]["guests"] == "available"
    (host.folder / "1.toml").unlink()
    wait_until(lambda: not host.guests(), what="the guest to be gone")


STAMPS = ("seen", "channel_open", "first_answer", "driver_ready")


def found(host: Host, number: int) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = host.guests().get(uid(number), {}).get("devices", [])
    return devices


def test_every_state_has_its_reason_and_words(host: Host) -> None:
    guest, smi = host.boot(1)
    host.wait_for(1, "ok")
    smi.say("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9)
    assert "couldn't communicate" in host.wait_for(1, "no_driver")["detail"]
    smi.say("Failed to initialize NVML: Driver/library version mismatch", 18)
    assert "version mismatch" in host.wait_for(1, "driver_mismatch")["detail"]
    smi.heal()
    host.wait_for(1, "ok")
    smi.show(2)
    assert host.wait_for(1, "gpu_count_differs")["detail"] == "it should have 1 GPUs and shows 2"
    smi.show(1)
    host.wait_for(1, "ok")
    guest.stop()
    host.wait_for(1, "guest_unreachable")
    kept = guest.host_key
    guest.new_host_key()
    guest.start()
    assert "not the virtual machine" in host.wait_for(1, "identity_mismatch")["detail"]
    assert kept != guest.host_key
    assert "tenant@127.0.0.1" in host.guests()[uid(1)]["detail"]


def test_another_virtual_machine_at_the_same_address_has_a_key_of_its_own(host: Host) -> None:
    guest, _ = host.boot(1)
    host.wait_for(1, "ok")
    before = guest.host_key
    (host.folder / "1.toml").unlink()
    wait_until(lambda: not host.guests(), what="the guest to be gone")
    guest.stop()
    guest.new_host_key()
    guest.start()
    host.tell(2, guest)
    host.wait_for(2, "ok")
    pins = host.kept / "agent" / "host_keys"
    assert {file.name: file.read_text().strip() for file in pins.iterdir()} == {
        uid(1): before,
        uid(2): guest.host_key,
    }


def test_what_one_guest_does_costs_no_other(host: Host) -> None:
    _, good = host.boot(1)
    _, hung = host.boot(2)
    _, flooding = host.boot(3)
    for number in (1, 2, 3):
        host.wait_for(number, "ok")
    hung.do("hang")
    flooding.do("flood")
    host.put("bad.toml", "vm_uuid = 1")
    host.put("4.toml", (host.folder / "1.toml").read_text())
    host.wait_for(3, "reader_failed")
    host.wait_for(2, "timeout")
    good.show(1, utilization_gpu="37 %")

    def reading() -> Any:
        return found(host, 1)[0]["readings"]["gpu_utilization_ratio"].get("value")

    wait_until(lambda: reading() == 0.37, what="the good guest's new reading")
    assert host.state(1) == "ok"
    capability = get_json(f"{host.url}/v1/snapshot")["capabilities"]["guests"]
    assert "is read already" in capability
    assert "and 1 more" in capability
    assert host.process.process.poll() is None


def test_readings_of_a_silent_guest_grow_old_and_are_not_shown_as_new(host: Host) -> None:
    guest, _ = host.boot(1)
    host.wait_for(1, "ok")
    guest.stop()
    host.wait_for(1, "guest_unreachable")
    wait_until(
        lambda: found(host, 1)[0]["readings"]["gpu_utilization_ratio"].get("absent") == "stale",
        what="its readings to be stale",
    )
    page = get_text(f"{host.url}/metrics")
    assert "node-1" in page
