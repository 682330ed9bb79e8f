import importlib.metadata
import json
import re
import socket
import tomllib
from pathlib import Path

import grpc
import pytest

from gpufleet.channels.local import LocalFiles
from gpufleet.doctor import CheckVerdict, NodeFacts, examine, gather_facts
from gpufleet.doctor.access import LocalAccess
from gpufleet.doctor.gather import PACKAGES
from tests.fakes.kubelet import KUBELET, FakeKubelet, node_folder
from tests.readers.host.machines import FixedClock, build
from tests.support.command import gpufleet
from tests.support.trees import plant

NVIDIA_FILES = """
/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 -> /etc/alternatives/glx--libnvidia-ml.so.1
/etc/alternatives/glx--libnvidia-ml.so.1 -> /usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1
/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1 -> libnvidia-ml.so.590.48.01
/lib -> usr/lib
/dev/nvidiactl
/dev/nvidia0
/dev/nvidia-caps/
/dev/kmsg
"""


async def collect(root: Path) -> NodeFacts:
    return await gather_facts(LocalFiles(root), LocalAccess(root), FixedClock(), "/var/lib/gpufleet")


def verdicts(facts: NodeFacts) -> dict[str, str]:
    return {check.name: check.verdict.value for check in examine(facts)}


async def test_facts_of_a_bare_metal_node(tmp_path: Path) -> None:
    plant(NVIDIA_FILES, build("bare_metal", tmp_path))
    facts = await collect(tmp_path)
    assert facts.libraries == {"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "590.48.01"}
    assert facts.device_nodes == {"/dev/nvidia0": "", "/dev/nvidiactl": ""}
    assert facts.switch_drivers == ("nvidia-nvswitch",) * 4
    by_check = verdicts(facts)
    assert by_check["nvidia_gpus"] == "ok"
    assert by_check["nvidia_versions"] == "ok"
    assert by_check["nvidia_fabric_manager"] == "ok"
    assert by_check["nvidia_device_nodes"] == "warning", "one node for eight GPUs"
    assert by_check["process_table"] == "ok"
    assert by_check["identity"] == "ok"


async def test_facts_of_a_kubevirt_node_and_a_container(tmp_path: Path) -> None:
    passed_through = verdicts(await collect(build("kubevirt_node", tmp_path / "node")))
    assert passed_through["nvidia_gpus"] == "warning", "one GPU has no driver"
    assert passed_through["nvidia_fabric_manager"] == "not_applicable"
    inside = await collect(build("container", tmp_path / "container"))
    assert inside.processes_hidden == "this process is in a PID namespace of its own"
    by_check = verdicts(inside)
    assert by_check["nvidia_library"] == "failed"
    assert by_check["nvidia_persistence"] == "unknown"


async def test_library_in_the_loader_cache_is_found(tmp_path: Path) -> None:
    build("guest", tmp_path)
    plant("/opt/nv/libnvidia-ml.so.1 -> libnvidia-ml.so.590.48.01\n", tmp_path)
    (tmp_path / "etc/ld.so.cache").write_bytes(
        b"glibc-ld.so.cache1.1\0\0libnvidia-ml.so.1\0/opt/nv/libnvidia-ml.so.1\0"
    )
    assert (await collect(tmp_path)).libraries == {"/opt/nv/libnvidia-ml.so.1": "590.48.01"}


async def test_hidepid_is_reported(tmp_path: Path) -> None:
    root = build("guest", tmp_path)
    (root / "proc/2/stat").unlink()
    with (root / "proc/self/mountinfo").open("a") as file:
        file.write("22 26 0:21 / /proc rw - proc proc rw,hidepid=invisible\n")
    assert (await collect(root)).processes_hidden == "/proc is mounted with hidepid=invisible"


async def test_facts_of_an_empty_machine_are_unknown(tmp_path: Path) -> None:
    facts = await collect(tmp_path)
    assert facts.inventory is None
    assert facts.errors
    by_name = verdicts(facts)
    for name in ("nvidia_gpus", "nvidia_driver", "nvidia_fabric_manager", "process_table", "identity"):
        assert by_name[name] == CheckVerdict.UNKNOWN, name


def test_state_of_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = LocalAccess(tmp_path)
    assert access.socket("/kubelet.sock") == "ENOENT"
    (tmp_path / "plain").write_text("")
    assert access.socket("/plain") == "ENOTSOCK"
    monkeypatch.chdir(tmp_path)  # socket paths have a length limit
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("kubelet.sock")
        assert access.socket("/kubelet.sock") == ""


def test_facts_of_this_machine_can_be_read() -> None:
    access = LocalAccess()
    assert access.clock_synchronized() in (True, False)
    assert access.folder("/proc/1") != ""
    assert access.folder("/etc/hostname") == "ENOTDIR"
    assert access.free_bytes("/no/such/folder") is not None


@pytest.mark.parametrize(("name", "code"), [("guest", 1), ("kubevirt_node", 1)])
def test_json_output_and_exit_code_of_failed_checks(name: str, code: int, tmp_path: Path) -> None:
    done = gpufleet("doctor", "--json", "--root", str(build(name, tmp_path)))
    assert done.returncode == code
    checks = json.loads(done.stdout)
    assert {"name", "verdict", "proves", "found", "fix"} == set(checks[0])
    assert any(check["verdict"] == "failed" for check in checks)


def test_passed_checks_take_one_line_and_failed_ones_have_a_fix(tmp_path: Path) -> None:
    done = gpufleet("doctor", "--root", str(build("bare_metal", tmp_path)), env={"COLUMNS": "80"})
    page = done.stdout
    assert "failed   nvidia_library" in page
    assert "fix:" in page
    assert "ok       nvidia_fabric_manager: nvidia-fabricmanager is running" in page
    assert "proves:" not in page
    assert max(map(len, page.splitlines())) <= 80
    verbose = gpufleet("doctor", "-v", "--root", str(tmp_path)).stdout
    assert verbose.count("proves:") == len(examine(NodeFacts()))


def holders_check(environment: dict[str, str]) -> dict[str, str]:
    done = gpufleet("doctor", "--json", env={f"GPUFLEET_AGENT_HOLDERS__{key}": one for key, one in environment.items()})
    checks: dict[str, dict[str, str]] = {check["name"]: check for check in json.loads(done.stdout)}
    return checks["holders"]


def test_holder_sources_of_this_machine_are_called() -> None:
    others = {"SLURM__ENABLED": "false", "LIBVIRT__ENABLED": "false", "PROCESSES__ENABLED": "false"}
    with node_folder() as root, FakeKubelet(root) as kubelet:
        environment = {**others, "KUBELET__FOLDER": str(root / KUBELET)}
        kubelet.fault = (grpc.StatusCode.PERMISSION_DENIED, "x")
        assert holders_check(environment)["verdict"] == "warning"
        assert kubelet.calls == 1
        kubelet.stop()
        kubelet.socket.parent.rmdir()
        assert holders_check(environment)["verdict"] == "not_applicable"


def test_machine_without_gpus_is_not_reported_as_broken(tmp_path: Path) -> None:
    build("guest", tmp_path)
    for device in (tmp_path / "sys/bus/pci/devices").iterdir():
        (device / "vendor").write_text("0x1af4\n")
    page = gpufleet("doctor", "--root", str(tmp_path), env={"COLUMNS": "400"}).stdout
    (line,) = [line for line in page.splitlines() if "nvidia_gpus" in line]
    assert line.startswith("-        nvidia_gpus, ")
    assert line.endswith(": no NVIDIA display controller on the PCI bus")
    assert not any(f"{verdict:<9}nvidia" in page for verdict in ("failed", "warning", "unknown"))


@pytest.mark.parametrize("extra", ["agent", "hub", "kubernetes"])
def test_every_package_of_an_extra_is_checked(extra: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[^a-z0-9-]", requirement)[0] for requirement in project["optional-dependencies"][extra]}
    distributions = importlib.metadata.packages_distributions()
    # uvloop is optional: it only improves speed.
    provided = {one.lower() for name in PACKAGES[extra] for one in (name, *distributions[name.partition(".")[0]])}
    assert required - {"uvloop"} <= provided
