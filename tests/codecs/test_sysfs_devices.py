"""NVIDIA GPUs by the host's sysfs: PCI functions and mediated devices."""

import pytest

from gpufleet.codecs.sysfs_devices import is_gpu, is_gpu_class, parent_of, plan_functions, plan_mdevs
from gpufleet.ports.channel import FetchPlan, FetchResult

VGPU = "c2177883-f1bb-47f0-914d-32a22e3a8804"
GPU = "0000:3b:00.0"
FOLDER = f"/sys/bus/pci/devices/{GPU}"


@pytest.mark.parametrize(
    ("vendor", "kind", "expected"),
    [
        (b"0x10de\n", b"0x030200\n", True),
        (b"0x10de\n", b"0x030000\n", True),
        (b"0x10de\n", b"0x040300\n", False),  # its audio function
        (b"0x15b3\n", b"0x020000\n", False),
        (b"0x1002\n", b"0x030000\n", False),
        (b"", b"0x030000\n", None),
        (b"0x10de\n", b"", None),
    ],
)
def test_gpu_is_known_by_vendor_and_class(vendor: bytes, kind: bytes, expected: bool | None) -> None:
    assert is_gpu_class(vendor, kind) is expected
    assert is_gpu(FetchResult(files={f"{FOLDER}/vendor": vendor, f"{FOLDER}/class": kind}), GPU) is expected


def test_parent_of_a_mediated_device_is_in_its_link() -> None:
    link = f"../../../devices/pci0000:3a/0000:3a:00.0/{GPU}/{VGPU}"
    fetched = FetchResult(links={f"/sys/bus/mdev/devices/{VGPU}": link})
    assert (parent_of(fetched, VGPU), parent_of(FetchResult(), VGPU)) == (GPU, "")


def test_plans_name_each_path_once() -> None:
    assert plan_mdevs([VGPU, VGPU]) == FetchPlan(links=(f"/sys/bus/mdev/devices/{VGPU}",))
    assert plan_functions([GPU, "", GPU]) == FetchPlan(files=(f"{FOLDER}/vendor", f"{FOLDER}/class"))
