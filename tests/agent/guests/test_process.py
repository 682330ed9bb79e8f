"""Agent with guests: real processes, real sshd, and guest files that change."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import gpufleet
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
    """Agent and the virtual machines of its host."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.state_folder, self.stack = folder / "guests.d", folder / "state", stack
        self.folder.mkdir()
        (folder / "agent.toml").write_text(CONFIG.format(folder=self.folder))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["--config", str(folder / "agent.toml"), "--listen", f"127.0.0.1:{port}"]
        process = Gpufleet(["agent", *arguments, "--state", str(self.state_folder)], folder / "agent.log", {})
        self.process = stack.enter_context(process)
        self.process.wait_for(f"{self.url}/readyz")

    def boot(self, number: int, *, gpus: int = 1, expected: int | None = None) -> tuple[Guest, GuestSmi]:
        """Boot a virtual machine and add its guest file."""
        guest = self.stack.enter_context(Guest())
        smi = GuestSmi(guest, number=number, gpus=gpus)
        self.add_guest(number, guest, gpus=expected if expected is not None else gpus)
        return guest, smi

    def add_guest(self, number: int, guest: Guest, *, gpus: int = 1) -> None:
        text = (
            f'name = "vm-{number}"\nnamespace = "ml"\nvm_uuid = "{uid(number)}"\ngpus = {gpus}\n'
            f'[[channels]]\ntype = "ssh"\naddress = "127.0.0.1:{guest.port}"\n'
            f'user = "{USER}"\nkey_file = "{guest.key_file}"\n'
        )
        self.write_file(f"{number}.toml", text)

    def write_file(self, name: str, text: str) -> None:
        (self.folder / f".{name}").write_text(text)
        (self.folder / f".{name}").replace(self.folder / name)

    def guests(self) -> dict[str, Any]:
        return {one["vm_uuid"]: one for one in get_json(f"{self.url}/v1/snapshot")["guests"]}

    def state(self, number: int) -> str:
        return str(self.guests().get(uid(number), {}).get("state", "none"))

    def wait_for(self, number: int, state: str) -> dict[str, Any]:
        wait_until(lambda: self.state(number) == state, seconds=40, what=f"vm-{number} to be {state}")
        document: dict[str, Any] = self.guests()[uid(number)]
        return document


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Agent shared by all tests. Each test uses its own guest numbers."""
    with ExitStack() as stack:
        yield Host(tmp_path_factory.mktemp("host"), stack)


STAMPS = ("seen", "channel_open", "first_answer", "driver_ready")


def devices_of(host: Host, number: int) -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = host.guests().get(uid(number), {}).get("devices", [])
    return devices


def capability(host: Host) -> str:
    return str(get_json(f"{host.url}/v1/snapshot")["capabilities"]["guests"])


def utilization(host: Host, number: int) -> dict[str, Any]:
    reading: dict[str, Any] = devices_of(host, number)[0]["readings"]["gpu_utilization_ratio"]
    return reading


def test_guest_is_read_until_its_file_is_removed(host: Host) -> None:
    host.boot(1, gpus=2)
    wait_until(lambda: [one.get("name") for one in devices_of(host, 1)] == [NAME, NAME], what="names of its GPUs")
    one = host.wait_for(1, "ok")
    assert [device["uuid"] for device in one["devices"]] == [uuid_of(1, 0), uuid_of(1, 1)]
    assert {device["side"] for device in one["devices"]} == {"guest"}
    assert one["machine"] == {"name": "ml/vm-1", "kind": "guest", "system_uuid": uid(1), "hypervisor": "node-1"}
    host_readings = one["host"]["readings"]
    assert host_readings["host_memory_total_bytes"]["value"] > 0
    stamps = [host_readings[f"guest_{name}_timestamp_seconds"]["value"] for name in STAMPS]
    assert stamps == sorted(stamps)
    assert capability(host) == "available"
    (host.folder / "1.toml").unlink()
    wait_until(lambda: uid(1) not in host.guests(), what="the guest to be gone")


def probe_of(readings: dict[str, Any]) -> Any:
    """Return the CUDA version that the performance probe read."""
    return readings.get("probe_nvidia_cuda_version", {}).get("value")


def test_node_and_guest_are_probed_and_again_on_request(host: Host) -> None:
    guest = host.stack.enter_context(Guest())
    guest.program("nvidia-smi", "#!/bin/sh\n[ $# -eq 0 ] && echo '| CUDA Version: 12.4 |'\n")
    host.add_guest(21, guest)
    wait_until(
        lambda: probe_of(host.guests().get(uid(21), {}).get("host", {}).get("readings", {})) == "12.4",
        what="the probe of the guest",
    )

    def own() -> dict[str, Any]:
        found: dict[str, Any] = get_json(f"{host.url}/v1/snapshot")["host"]["readings"]
        return found

    wait_until(lambda: own().get("probe_numa_nodes", {}).get("value", 0) >= 1, what="the probe of the node")
    assert probe_of(own()) is None  # a guest's values are not the host's
    guest.program("nvidia-smi", "#!/bin/sh\n[ $# -eq 0 ] && echo '| CUDA Version: 13.0 |'\n")
    done = gpufleet("agent", "probe", "--state", str(host.state_folder))
    assert done.returncode == 0, done.stderr
    wait_until(lambda: probe_of(host.guests()[uid(21)]["host"]["readings"]) == "13.0", what="the request")


def test_each_guest_state_is_reported(host: Host) -> None:
    """Covers a failing driver up to another virtual machine at the same address with its own pinned key."""
    guest, smi = host.boot(2)
    host.wait_for(2, "ok")
    smi.fail_with("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9)
    assert "couldn't communicate" in host.wait_for(2, "no_driver")["detail"]  # as nvidia-smi printed it
    smi.fail_with("Failed to initialize NVML: Driver/library version mismatch", 18)
    assert "version mismatch" in host.wait_for(2, "driver_mismatch")["detail"]
    smi.heal()
    smi.show(2)
    host.wait_for(2, "gpu_count_differs")
    smi.show(1)
    host.wait_for(2, "ok")

    guest.stop()
    host.wait_for(2, "guest_unreachable")
    wait_until(lambda: utilization(host, 2).get("absent") == "stale", what="its readings to be stale")
    assert "node-1" in get_text(f"{host.url}/metrics")

    pinned = guest.host_key
    guest.new_host_key()
    guest.start()
    assert f"{USER}@127.0.0.1" in host.wait_for(2, "identity_mismatch")["detail"]
    assert pinned != guest.host_key

    (host.folder / "2.toml").unlink()
    wait_until(lambda: uid(2) not in host.guests(), what="the guest to be gone")
    host.add_guest(3, guest)
    host.wait_for(3, "ok")
    pins = host.state_folder / "agent" / "host_keys"
    assert (pins / uid(2)).read_text().strip() == pinned
    assert (pins / uid(3)).read_text().strip() == guest.host_key


def test_failing_guests_do_not_affect_another(host: Host) -> None:
    _, good = host.boot(11)
    _, hung = host.boot(12)
    _, flooding = host.boot(13)
    for number in (11, 12, 13):
        host.wait_for(number, "ok")
    hung.do("hang")
    flooding.do("flood")
    host.write_file("bad.toml", "vm_uuid = 1")
    host.write_file("14.toml", (host.folder / "11.toml").read_text())
    try:
        host.wait_for(13, "reader_failed")
        host.wait_for(12, "timeout")
        good.show(1, utilization_gpu="37 %")
        wait_until(lambda: utilization(host, 11).get("value") == 0.37, what="the good guest's new reading")
        assert host.state(11) == "ok"
        assert uid(11) in capability(host)
        assert capability(host).startswith("failing: ")
        assert host.process.process.poll() is None
    finally:
        for name in ("bad", "11", "12", "13", "14"):
            (host.folder / f"{name}.toml").unlink()
    wait_until(lambda: capability(host) == "available", what="the capability without the bad files")
