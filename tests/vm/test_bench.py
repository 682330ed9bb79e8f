"""Captures of this host and of an emulated guest through the real channels, and their comparison."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from gpufleet.bench.fio import JOBS
from tests.bench.test_capture import fio_folder
from tests.support.command import Done, gpufleet
from tests.vm.disk import DEVICE, attach_fio, mount_disk
from tests.vm.machine import SHARE, VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

UID = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
SECONDS = 120
REPEATS = 20
"""Five repeats give a verdict, but not on a busy machine: the spread of both sides is then larger than the medians."""


class Bench:
    """Commands on the host of the virtual machine, whose second key is restricted to the script with `bench`."""

    def __init__(self, vm: VirtualMachine, folder: Path) -> None:
        self.folder, self.out, self.config = folder, folder / "out", folder / "agent.toml"
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(folder / "key")
        public = key.export_public_key().decode().strip()
        keys, script = "/root/.ssh/authorized_keys", "/usr/local/libexec/gpufleet-guest bench"
        assert vm.run(f"cp {keys} /run/keys && echo 'command=\"{script}\" {public}' >>{keys}")[0] == 0
        # The host runs the guest's stand-in of nvidia-smi.
        (folder / "bin").mkdir()
        program = vm.files["usr/local/bin/nvidia-smi"][1].decode().replace(f"/{SHARE}", str(vm.folder))
        (folder / "bin/nvidia-smi").write_text(program)
        (folder / "bin/nvidia-smi").chmod(0o755)
        self.write_config(
            f'type = "ssh"\naddress = "127.0.0.1:{vm.ssh_port}"\nuser = "root"\n'
            f'key_file = "{folder / "key"}"\nhost_key = "{vm.host_key}"'
        )

    def write_config(self, channel: str) -> None:
        """Describe the guest with one channel."""
        guest = f'name = "guest-a"\nvm_uuid = "{UID}"\nallocation = "slice-17"\n[[guests.channels]]\n{channel}\n'
        self.config.write_text(f'state = "{self.folder / "state"}"\n[[guests]]\n{guest}')

    def capture(self, name: str, *options: str, path: str = "") -> Path:
        """Return the file of a capture."""
        shared = ("--config", str(self.config), "--out", str(self.out), "--name", name)
        done = gpufleet("bench", "capture", *shared, *options, seconds=SECONDS, env={"PATH": path} if path else None)
        assert done.returncode == 0, done.stderr
        (found,) = self.out.glob(f"{name}-*.json")
        return found


@pytest.fixture
def bench(vm: VirtualMachine, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(vm, tmp_path)
    assert vm.run("cp /run/keys /root/.ssh/authorized_keys")[0] == 0


def run(*arguments: str) -> Done:
    done = gpufleet(*arguments, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    return done


def test_emulated_guest_is_compared_with_its_host(bench: Bench, vm: VirtualMachine) -> None:
    repeats = ("--repeat", str(REPEATS))
    host = bench.capture("metal", *repeats, path=f"{bench.folder / 'bin'}:{os.environ['PATH']}")
    guest = bench.capture("emulated", "--guest", "slice-17", "--ib-peer", "10.0.2.2", *repeats)
    documents = [json.loads(path.read_bytes()) for path in (host, guest)]
    assert [one["machine"]["source"] for one in documents] == ["host_local_probe", "slice_guest"]
    assert (documents[1]["machine"]["system_uuid"], documents[1]["machine"]["allocation"]) == (UID, "slice-17")
    facts = {one["name"]: one.get("value") for one in documents[1]["facts"]}
    assert (facts["host_virtualization"], facts["host_cpus"], facts["nvidia_gpus"]) == ("qemu", 1, vm.gpus)

    table = run("bench", "compare", str(host), str(guest)).stdout
    assert "nvidia_smi_warm" in {line.partition("\t")[0] for line in table.splitlines()}
    assert "emulated" in table
    compared = json.loads(run("bench", "compare", str(host), str(guest), "--format", "json").stdout)
    (warm,) = [one for one in compared["measurements"] if one["name"] == "nvidia_smi_warm"]
    assert {warm["other"]["count"], warm["baseline"]["count"]} == {REPEATS}
    assert warm["verdict"] in ("worse", "no_significant_difference")  # the latter if the host is busy
    assert warm["other"]["median"] > warm["baseline"]["median"]
    assert any("emulated" in note for note in compared["notes"])


def fio_values(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_bytes())["measurements"]
    return {one["name"]: (len(one["values"]), one["target"]) for one in found if one["tool"] == "fio"}


def test_real_fio_reads_a_disk_of_host_and_guest(parts: None, peer: Callable[[str], Path], tmp_path: Path) -> None:
    fio, machine = peer("fio"), VirtualMachine()
    disk = attach_fio(machine, fio, tmp_path)
    with machine:
        mount_disk(machine)
        before = hashlib.sha256(disk.read_bytes()).hexdigest()
        bench = Bench(machine, tmp_path)
        guest = bench.capture("emulated", "--guest", "guest-a", "--fio", DEVICE, "--repeat", "1")
        tools = f"{fio_folder(fio, tmp_path / 'tools')}:{os.environ['PATH']}"
        host = bench.capture("metal", "--fio", str(disk), "--repeat", "1", path=tools)
    names = {kind.name for job in JOBS for kind in job.kinds(direct=True).values()}
    assert fio_values(guest) == dict.fromkeys(names, (1, DEVICE))
    assert fio_values(host) == dict.fromkeys(names, (1, str(disk)))
    assert hashlib.sha256(disk.read_bytes()).hexdigest() == before  # the guest may write to its disk, and did not
    compared = json.loads(run("bench", "compare", str(host), str(guest), "--format", "json").stdout)
    verdicts = {one["name"]: one["verdict"] for one in compared["measurements"]}
    assert {verdicts[name] for name in names} == {"too_few_repeats"}  # comparable: one repeat gives no verdict
    assert any("emulated" in note for note in compared["notes"])


def test_guest_agent_carries_a_capture(bench: Bench, vm: VirtualMachine) -> None:
    bench.write_config(f'type = "qemu_agent"\nsocket = "{vm.agent}"')
    document = json.loads(bench.capture("agent", "--guest", "guest-a", "--repeat", "1").read_bytes())
    assert document["machine"]["channel"] == f"guest agent at {vm.agent}"
    facts = {one["name"]: one for one in document["facts"]}
    assert facts["nvidia_gpus"]["value"] == vm.gpus
    assert facts["host_kernel_parameters"]["absent"] is None  # no restricted key
    assert 0 < facts["clock_boot_uncertainty_seconds"]["value"] < 60
