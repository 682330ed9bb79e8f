"""Captures of a guest through the restricted key of a real sshd: content, refusals, RDMA peers, and hostile guests."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.bench.document import MAX_BYTES
from gpufleet.channels.guest_shell.shell import script
from gpufleet.holders.kubernetes.resources import VIRTUAL_MACHINE_INSTANCES
from tests.fakes.kube_api import FakeKubeApi
from tests.holders.kubevirt.objects import NODE, vmi_object
from tests.holders.kubevirt.objects import UID as VMI_UID
from tests.support.command import Done, gpufleet
from tests.support.hostile import CONTROLS
from tests.support.kube_objects import VMI_KIND, key_of
from tests.support.sshd import USER, Guest

pytestmark = pytest.mark.system

UID = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
SMI = """#!/bin/sh
case $1 in
-L) echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70)' ;;
--*) ;;
*) echo '| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |' ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
case $* in
*Firmware*) printf 'UserspaceTimestampMonotonic=2000000\\nFinishTimestampMonotonic=9000000\\n' ;;
*) printf 'Id=docker.service\\nActiveState=active\\nActiveEnterTimestampMonotonic=7500000\\n' ;;
esac
"""


class Capturing:
    """A guest with a restricted key, and the configuration of an agent that reads it."""

    def __init__(self, guest: Guest, folder: Path) -> None:
        self.guest, self.folder = guest, folder
        self.config = folder / "agent.toml"
        for name, text in (("gpufleet-guest", script()), ("nvidia-smi", SMI), ("systemctl", SYSTEMCTL)):
            guest.program(name, text)
        self.permit("bench")
        self.config.write_text(
            f"""state = "{folder / "state"}"
[[guests]]
name = "train-0"
namespace = "ml"
vm_uuid = "{UID}"
allocation = "slice-17"
[[guests.channels]]
type = "ssh"
address = "127.0.0.1:{guest.port}"
user = "{USER}"
key_file = "{guest.key_file}"
host_key = "{guest.host_key}"
[[guests]]
name = "vsock-only"
vm_uuid = "6a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
channels = [{{ type = "dcgm", address = "vsock://42:5555" }}]
"""
        )

    def permit(self, option: str) -> None:
        """Restrict the key to the script with an option."""
        self.guest.forced = Path(f"{self.guest.folder}/bin/gpufleet-guest {option}".strip())
        self.guest.authorize(self.guest.own_key)

    def run(self, *arguments: str) -> Done:
        """Run a capture."""
        out = str(self.folder / "out")
        options = ("--config", str(self.config), "--out", out, "--repeat", "1", "--json")
        return gpufleet("bench", "capture", *options, *arguments)

    def capture(self, *arguments: str) -> "Document":
        """Return the document of a capture."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return Document(json.loads(done.stdout))


class Document:
    """Document of a capture, by name."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.machine = document["machine"]
        self.facts = {one["name"]: one for one in document["facts"] if not one["subject"]}
        self.measurements = {one["name"]: one for one in document["measurements"]}


@pytest.fixture
def capturing(tmp_path: Path) -> Iterator[Capturing]:
    with Guest() as guest:
        yield Capturing(guest, tmp_path)


def test_guest_is_captured_with_its_configured_identity(capturing: Capturing) -> None:
    found = capturing.capture("--guest", "slice-17")
    machine = {name: found.machine[name] for name in ("name", "system_uuid", "allocation", "source")}
    assert machine == {
        "name": "ml/train-0",
        "system_uuid": UID,
        "allocation": "slice-17",
        "source": "slice_guest",
    }
    assert found.machine["channel"].startswith("ssh to 127.0.0.1:")
    facts = {name: found.facts[name]["value"] for name in ("nvidia_gpus", "nvidia_cuda_version")}
    assert facts == {"nvidia_gpus": 1, "nvidia_cuda_version": "12.4"}
    assert found.facts["host_cpus"]["value"] >= 1
    for name in ("docker_default_runtime", "host_kernel_parameters"):  # files that can have secrets
        assert found.facts[name]["absent"] == "not_permitted"
    values = {name: found.measurements[name]["values"] for name in ("boot_userspace", "ready_containers")}
    assert values == {"boot_userspace": [7.0], "ready_containers": [7.5]}
    assert found.measurements["channel_open"]["values"][0] > 0
    assert 0 < found.facts["clock_boot_uncertainty_seconds"]["value"] < 60


def test_workloads_without_the_key_option_are_not_permitted(capturing: Capturing) -> None:
    capturing.permit("")
    capturing.guest.program("fio", "#!/bin/sh\necho fio-3.33\n")
    found = capturing.capture("--guest", "train-0", "--fio", "/data")
    assert found.measurements["fio_read_1m_bandwidth"]["absent"] == "not_permitted"
    assert found.facts["nvidia_gpus"]["value"] == 1


def test_older_script_in_the_guest_makes_the_probe_partial(capturing: Capturing) -> None:
    older = script().replace("run | probe | bench)", "run)")
    assert older != script()
    capturing.guest.program("gpufleet-guest", older)
    found = capturing.capture("--guest", UID)
    assert found.measurements["boot_userspace"]["absent"] == "not_permitted"
    assert found.facts["docker_version"]["absent"] == "not_permitted"
    assert found.facts["nvidia_gpus"]["value"] == 1


@pytest.mark.parametrize("option", ["--ib-guest", "--ib-peer"])
def test_rdma_server_is_started_in_a_guest(capturing: Capturing, option: str) -> None:
    server = "#!/bin/sh\n[ $1 = --version ] && echo Version: 6.06 && exit\necho 'Failed to get device' >&2; exit 1\n"
    capturing.guest.program("ib_write_bw", server)
    capturing.guest.program("ib_write_lat", server)
    found = capturing.capture("--guest", "train-0", option, "train-0")
    measured = found.measurements["rdma_write_bandwidth"]
    assert (measured["target"], measured["absent"]) == ("127.0.0.1", "reader_failed")
    assert "server on the peer" in measured["detail"]
    assert "Failed to get device" in measured["detail"]
    servers = [one["argv"] for one in found.document["commands"] if one["name"] == "ib_write_bw_server"]
    assert servers == [["ib_write_bw", "-F", "--report_gbits", "-n", "5000", "-s", "65536"]]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--guest", "other"], 2),
        (["--guest", "vsock-only"], 1),
        (["--guest", "train-0", "--fio", "relative"], 2),
        (["--ib-guest", "train-0", "--ib-peer", "x"], 2),
    ],
)
def test_guest_that_cannot_be_captured_is_an_error(capturing: Capturing, arguments: list[str], code: int) -> None:
    done = capturing.run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert list((capturing.folder / "out").glob("*.json")) == []


@pytest.mark.parametrize(("annotation", "code"), [("ssh", 0), ("dcgm-vsock", 1), (None, 2)])
async def test_guest_of_kubevirt_is_captured_over_ssh(capturing: Capturing, annotation: str | None, code: int) -> None:
    async with FakeKubeApi() as api:
        api.serve(VMI_KIND)
        api.put(key_of(VIRTUAL_MACHINE_INSTANCES), vmi_object("vm-7", annotation=annotation, address="127.0.0.1"))
        capturing.config.write_text(
            f"""state = "{capturing.folder / "state"}"
[readers.host]
k8s_node_name = "{NODE}"
[kubevirt]
enabled = true
kubeconfig = "{api.kubeconfig(capturing.folder)}"
networks = ["127.0.0.0/8"]
[kubevirt.ssh]
key_file = "{capturing.guest.key_file}"
user = "{USER}"
port = {capturing.guest.port}
"""
        )
        done = await asyncio.to_thread(capturing.run, "--guest", "ml/vm-7")
    assert done.returncode == code, done.stderr
    if code == 0:
        found = Document(json.loads(done.stdout))
        assert (found.machine["name"], found.machine["system_uuid"]) == ("ml/vm-7", VMI_UID)
        assert found.machine["source"] == "slice_guest"
        assert found.facts["nvidia_gpus"]["value"] == 1


ENDLESS = "#!/bin/sh\nexec yes '[{]}'\n"
FORGED = """#!/bin/sh
printf '{"fio version":"fio-3.33","jobs":[{"jobname":"read_1m","error":0}]}\\033[2J\\n'
"""


def test_hostile_guest_costs_only_its_own_measurements(capturing: Capturing) -> None:
    for name in ("nvidia-smi", "systemctl", "docker"):
        capturing.guest.program(name, ENDLESS)
    for name in ("fio", "stat", "ib_write_bw", "ib_write_lat", "containerd", "runc", "nvidia-ctk"):
        capturing.guest.program(name, FORGED)
    hostile = capturing.capture("--guest", "train-0", "--fio", "/dev/null", "--ib-peer", "node-2")
    absent = {name: one["absent"] for name, one in hostile.measurements.items() if one["tool"] != "channel"}
    assert set(absent.values()) <= {"reader_failed", "invalid_value", "not_supported", "not_permitted"}
    assert hostile.facts["docker_version"]["absent"] == "reader_failed"
    text = json.dumps(hostile.document, ensure_ascii=False)
    assert len(text) < MAX_BYTES
    assert not CONTROLS & set(text)
    own = Document(
        json.loads(gpufleet("bench", "capture", "--json", "--repeat", "1", "--out", str(capturing.folder)).stdout)
    )
    assert own.machine["source"] == "host_local_probe"
    assert own.facts["host_cpus"]["value"] >= 1
