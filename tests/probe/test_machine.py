"""Performance probe: facts from a planted machine, and reasons of absent ones."""

from pathlib import Path

import msgspec
import pytest

from gpufleet.channels.local import LocalFiles
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import ChannelError
from gpufleet.model.machine import Machine
from gpufleet.ports.channel import FetchPlan, FetchResult
from gpufleet.probe.facts import FACTS, FactList
from gpufleet.probe.machine import probe_commands, probe_machine, read_version
from gpufleet.probe.measurements import MeasurementList
from gpufleet.probe.records import Fact
from gpufleet.probe.runner import CommandRunner
from tests.fakes.clock import FakeClock
from tests.fakes.commands import FakeCommands, printed
from tests.support.hostile import CONTROLS, HOSTILE
from tests.support.trees import plant

TREE = (Path(__file__).parent / "bare_metal.tree").read_text()


async def probed(root: Path) -> tuple[Machine | None, dict[tuple[str, str], Fact]]:
    facts = FactList()
    machine = await probe_machine(LocalFiles(root), FakeClock(), facts, MeasurementList())
    return machine, {(fact.name, fact.subject): fact for fact in facts.facts}


async def test_facts_of_a_bare_metal_machine(tmp_path: Path) -> None:
    plant(TREE, tmp_path)
    machine, facts = await probed(tmp_path)
    assert machine is not None
    assert machine.name == "gpu-1"
    values = {name: fact.value for (name, subject), fact in facts.items() if not subject and fact.absent is None}
    expected = {
        "host_kernel_release": "6.1.0-28-amd64",
        "host_virtualization": "none",
        "host_uptime_seconds": 4242.5,
        "host_cpus": 5,
        "host_cpu_sockets": 2,
        "host_smt_active": True,
        "host_cpu_governors": "performance (2), powersave (1)",
        "host_numa_nodes": 3,
        "host_numa_cpus": "0: 0-1; 2: 2-3,8; 10: none",
        "host_memory_bytes": 2113536000 * 1024,
        "host_hugepages": "1048576kB: 64, 2048kB: 0",
        "host_hugepages_free": "1048576kB: 10, 2048kB: 0",
        "host_transparent_hugepages": "madvise",
        "host_kernel_parameters": "hugepages=64 hugepagesz=1G intel_iommu=on iommu=pt",
        "host_iommu_groups": 2,
        "host_iommu_modes": "DMA-FQ (1), identity (1)",
        "host_rdma_devices": 2,
        "host_pci_gpus": 2,
        "host_nvidia_peermem": True,
        "host_gdrcopy": False,
        "host_cdi_specifications": "/etc/cdi/nvidia.yaml",
        "host_root_filesystem": "ext4",
        "host_root_device": "/dev/nvme0n1p2",
        "host_root_disk_model": "SAMSUNG MZQL2",
        "host_root_disk_serial": "S64HNE0T",
        "host_root_disk_bytes": 3_840_755_982_336,
        "host_pci_links": "0000:18:00.0 x16 of x16, 32 GT/s; 0000:2a:00.0 x? of x16, ? GT/s",
        "docker_default_runtime": "nvidia",
        "docker_nvidia_runtime": True,
    }
    assert {name: values.get(name) for name in expected} == expected


async def test_link_of_each_gpu_is_a_fact_or_absent(tmp_path: Path) -> None:
    plant(TREE, tmp_path)
    _, facts = await probed(tmp_path)
    wide = {name: fact.value for (name, subject), fact in facts.items() if subject == "0000:18:00.0"}
    assert wide == {
        "pci_link_width": 16,
        "pci_link_width_max": 16,
        "pci_link_speed": 2.5e9,
        "pci_link_speed_max": 32e9,
        "pci_numa_node": 0,
        "pci_driver": "nvidia",
        "pci_iommu_group": "7",
    }
    narrow = {name: fact.absent for (name, subject), fact in facts.items() if subject == "0000:2a:00.0"}
    assert narrow == {
        "pci_link_width": Reason.INVALID_VALUE,
        "pci_link_width_max": None,
        "pci_link_speed": Reason.NOT_SUPPORTED,
        "pci_link_speed_max": Reason.NOT_SUPPORTED,
        "pci_numa_node": Reason.NOT_REPORTED,
        "pci_driver": Reason.NOT_SUPPORTED,
        "pci_iommu_group": Reason.NOT_SUPPORTED,
    }


async def test_unknown_fact_is_absent_and_not_zero(tmp_path: Path) -> None:
    _, facts = await probed(tmp_path)
    for name in ("host_rdma_devices", "host_iommu_groups", "host_pci_gpus", "host_numa_nodes", "host_cpu_sockets"):
        assert facts[name, ""].absent is not None
        assert facts[name, ""].value is None


@pytest.mark.parametrize(
    ("packages", "sockets", "reason"),
    [(("-1", "-1"), None, Reason.NOT_REPORTED), (("0", "-1"), 1, None), (("0", "1"), 2, None)],
)
async def test_unknown_package_is_no_socket(
    tmp_path: Path, packages: tuple[str, ...], sockets: int | None, reason: Reason | None
) -> None:
    plant(TREE, tmp_path)
    paths = sorted((tmp_path / "sys/devices/system/cpu").glob("cpu*/topology/physical_package_id"))
    for path, package in zip(paths, packages, strict=True):
        path.write_text(f"{package}\n")
    _, facts = await probed(tmp_path)
    found = facts["host_cpu_sockets", ""]
    assert (found.value, found.absent) == (sockets, reason)


async def test_root_without_a_size_is_not_empty(tmp_path: Path) -> None:
    class Diskless:
        async def fetch(self, plan: FetchPlan) -> FetchResult:
            fetched = await LocalFiles(tmp_path).fetch(plan)
            for point, figures in fetched.filesystems.items():  # the kernel's rootfs, a ramfs, reports no blocks
                fetched.filesystems[point] = msgspec.structs.replace(figures, size_bytes=0)
            return fetched

    plant(TREE, tmp_path)
    facts = FactList()
    await probe_machine(Diskless(), FakeClock(), facts, MeasurementList())
    size = next(fact for fact in facts.facts if fact.name == "host_root_bytes")
    assert (size.value, size.absent) == (None, Reason.NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("hidden", "specifications", "reason"),
    [
        ("/etc/cdi/nvidia.yaml", "/etc/cdi/nvidia.yaml", None),  # a file of mode 600
        ("/etc/cdi/*.yaml", None, Reason.NOT_PERMITTED),  # a folder that cannot be listed
    ],
)
async def test_unreadable_specifications_are_not_none(
    tmp_path: Path, hidden: str, specifications: str | None, reason: Reason | None
) -> None:
    class Unprivileged:
        async def fetch(self, plan: FetchPlan) -> FetchResult:
            fetched = await LocalFiles(tmp_path).fetch(plan)
            if fetched.files.pop("/etc/cdi/nvidia.yaml", None) is not None:
                fetched.errors[hidden] = "EACCES"
            return fetched

    plant(TREE, tmp_path)
    facts = FactList()
    await probe_machine(Unprivileged(), FakeClock(), facts, MeasurementList())
    found = next(fact for fact in facts.facts if fact.name == "host_cdi_specifications")
    assert (found.value, found.absent) == (specifications, reason)


async def test_every_fact_of_the_machine_is_known_or_absent(tmp_path: Path) -> None:
    plant(TREE, tmp_path)
    machine_facts = FactList()
    await probe_machine(LocalFiles(tmp_path), FakeClock(), machine_facts, MeasurementList())
    runner = CommandRunner(FakeCommands(), FakeClock())
    await probe_commands(runner, 1, machine_facts, MeasurementList())
    found = {fact.name for fact in machine_facts.facts}
    assert {name for name in FACTS if not name.startswith(("pci_", "gpu_"))} <= found


class BrokenFiles:
    async def fetch(self, plan: FetchPlan) -> FetchResult:
        raise ChannelError("the guest is gone")


async def test_broken_channel_makes_all_facts_absent() -> None:
    facts = FactList()
    assert await probe_machine(BrokenFiles(), FakeClock(), facts, MeasurementList()) is None
    assert {fact.absent for fact in facts.facts} == {Reason.READER_FAILED}


async def test_hostile_files_cost_their_own_facts(tmp_path: Path) -> None:
    plant(TREE, tmp_path)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-99999999999")
    (tmp_path / "proc/meminfo").write_bytes(b"\xff" * 5000)
    (tmp_path / "etc/docker/daemon.json").write_text("[" * 100_000)
    (tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").write_text(HOSTILE)
    _, facts = await probed(tmp_path)
    for name in ("host_cpus", "host_memory_bytes", "docker_default_runtime"):
        assert facts[name, ""].absent is Reason.INVALID_VALUE
    texts = [f"{fact.value}{fact.detail}{fact.source}" for fact in facts.values()]
    assert not CONTROLS & set("".join(texts))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Docker version 28.2.2, build e6534b4", "28.2.2"),
        ("containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da", "1.7.27"),
        ("runc version 1.2.5-0+deb12u1", "1.2.5-0+deb12u1"),
        ("NVIDIA Container Toolkit CLI version 1.17.8", "1.17.8"),
        ("fio-3.33", "3.33"),
        ("Version: 6.06", "6.06"),
    ],
)
async def test_version_is_taken_from_the_output(text: str, version: str) -> None:
    channel = FakeCommands(docker=printed(text))
    assert await read_version(CommandRunner(channel, FakeClock()), "x", ("docker", "--version")) == version


async def test_output_without_a_version_is_absent() -> None:
    channel = FakeCommands(docker=printed("podman"))
    found = await read_version(CommandRunner(channel, FakeClock()), "x", ("docker", "--version"))
    assert isinstance(found, Absent)
    assert found.reason is Reason.INVALID_VALUE


@pytest.mark.parametrize("value", [10**38, -(10**400), float("inf"), float("nan")])
def test_number_out_of_range_is_absent(value: float) -> None:
    facts = FactList()
    facts.add("host_root_bytes", value)
    assert [(one.value, one.absent) for one in facts.facts] == [(None, Reason.INVALID_VALUE)]


async def test_uptime_by_lxcfs_is_none_of_the_machine(tmp_path: Path) -> None:
    plant(TREE, tmp_path)
    with (tmp_path / "proc/self/mountinfo").open("a") as file:
        file.write("702 701 0:60 /proc/uptime /proc/uptime rw,nosuid - fuse.lxcfs lxcfs rw\n")
    _, facts = await probed(tmp_path)
    names = ("host_uptime_seconds", "clock_boot_seconds", "clock_offset_seconds")
    assert {facts[name, ""].absent for name in names} == {Reason.NOT_REPORTED}
