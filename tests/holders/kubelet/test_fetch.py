"""Folders and files of a node."""

from pathlib import Path

from gpufleet.codecs import mig_minors
from gpufleet.holders.kubelet import fetch
from gpufleet.holders.kubelet.fetch import CdiFolders, KubeletFolders, gpus_of_groups, other_devices, read_folders
from gpufleet.ports.holder import Naming

UUID = "7f5e7c15-0000-4000-8000-000000000001"


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def folders_of(root: Path) -> KubeletFolders:
    return KubeletFolders(root / "kubelet", root / "var/log/pods", root / "var/log/containers")


def specification(node: str, *, kind: str = "nvidia.com/gpu", name: str = "0") -> str:
    return f"kind: {kind}\ndevices:\n- name: '{name}'\n  containerEdits:\n    deviceNodes:\n    - path: {node}\n"


def test_names_and_links_of_the_kubelet_are_read(tmp_path: Path) -> None:
    (tmp_path / f"var/log/pods/ml_a_{UUID}").mkdir(parents=True)
    (tmp_path / f"kubelet/pods/{UUID}").mkdir(parents=True)
    (tmp_path / "var/log/containers").mkdir(parents=True)
    for link in ("a_ml_train-1.log", "b_ml_train-2.log", "a_team_train-3.log"):
        (tmp_path / "var/log/containers" / link).symlink_to("/var/log/pods/y/0.log")
    (tmp_path / "var/log/containers/a_ml_file").touch()
    folders = read_folders(folders_of(tmp_path), {("ml", "a")})
    assert folders.pod_logs == (f"ml_a_{UUID}",)
    assert folders.pods == frozenset({UUID})
    assert folders.container_logs == (("a_ml_train-1.log", "/var/log/pods/y/0.log"),)
    assert folders.problems == ()


def test_missing_folders_are_reported(tmp_path: Path) -> None:
    folders = read_folders(folders_of(tmp_path), ())
    assert (folders.pod_logs, folders.pods, folders.container_logs) == ((), None, ())
    assert len(folders.problems) == 3


def test_specifications_are_read_and_later_folders_win(tmp_path: Path) -> None:
    write(tmp_path / "etc/cdi/nvidia.yaml", specification("/dev/nvidia0"))
    write(tmp_path / "run/cdi/nvidia.yaml", specification("/dev/nvidia3"))
    write(tmp_path / "run/cdi/readme.txt", "no specification")
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to(tmp_path / "run")
    found = CdiFolders(tmp_path).identities({"nvidia.com/gpu=0", "nvidia.com/gpu=1"})
    assert found == ({"nvidia.com/gpu=0": (Naming.MINOR, "3")}, ())


def test_changed_specification_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run/cdi/nvidia.yaml"
    folders = CdiFolders(tmp_path)
    write(path, specification("/dev/nvidia0"))
    assert folders.identities({"nvidia.com/gpu=0"})[0] == {"nvidia.com/gpu=0": (Naming.MINOR, "0")}
    write(path, specification("/dev/nvidia12"))
    assert folders.identities({"nvidia.com/gpu=0"})[0] == {"nvidia.com/gpu=0": (Naming.MINOR, "12")}
    path.unlink()
    assert folders.identities({"nvidia.com/gpu=0"}) == ({}, ())


def test_broken_specification_costs_only_itself(tmp_path: Path) -> None:
    write(tmp_path / "run/cdi/a.yaml", "kind: [")
    write(tmp_path / "run/cdi/b.json", "x" * (fetch.MAX_FILE_BYTES + 1))
    (tmp_path / "run/cdi/c.json").mkdir()
    write(tmp_path / "run/cdi/nvidia.yaml", specification("/dev/nvidia0"))
    identities, problems = CdiFolders(tmp_path).identities({"nvidia.com/gpu=0"})
    assert identities == {"nvidia.com/gpu=0": (Naming.MINOR, "0")}
    assert [name for name in ("a.yaml", "b.json", "c.json") if any(name in problem for problem in problems)] == [
        "a.yaml",
        "b.json",
        "c.json",
    ]


def test_mig_device_needs_the_list_of_capability_files(tmp_path: Path) -> None:
    write(tmp_path / "run/cdi/nvidia.yaml", specification("/dev/nvidia-caps/nvidia-cap13"))
    folders = CdiFolders(tmp_path)
    identities, problems = folders.identities({"nvidia.com/gpu=0"})
    assert identities == {}
    assert len(problems) == 1
    write(tmp_path / mig_minors.PATH.lstrip("/"), "gpu0/gi1/ci0/access 13\n")
    assert folders.identities({"nvidia.com/gpu=0"}) == ({"nvidia.com/gpu=0": (Naming.MIG_OF_MINOR, "0/1/0")}, ())


def test_pci_functions_other_than_gpus_are_found(tmp_path: Path) -> None:
    for address, pci_class in (
        ("0000:3b:00.0", "0x020000"),
        ("0000:5e:00.0", "0x030200"),
        ("0000:5e:00.1", "0x040300"),
    ):
        write(tmp_path / f"sys/bus/pci/devices/{address}/class", f"{pci_class}\n")
    write(tmp_path / "sys/kernel/iommu_groups/1/devices/0000:3b:00.0", "")
    write(tmp_path / "sys/kernel/iommu_groups/2/devices/0000:5e:00.0", "")
    write(tmp_path / "sys/kernel/iommu_groups/2/devices/0000:5e:00.1", "")
    network = {(Naming.PCI, "0000:3b:00.0"), (Naming.IOMMU_GROUP, "1")}
    gpus = {(Naming.PCI, "0000:5e:00.0"), (Naming.IOMMU_GROUP, "2")}
    unknown = {(Naming.PCI, "0000:ff:00.0"), (Naming.IOMMU_GROUP, "9")}
    assert other_devices(tmp_path, network | gpus | unknown) == network
    assert gpus_of_groups(tmp_path, network | gpus | unknown) == {
        (Naming.IOMMU_GROUP, "2"): (Naming.PCI, "0000:5e:00.0")
    }
