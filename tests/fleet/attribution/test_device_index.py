"""Resolution of device names to views: by identity only."""

import pytest

from gpufleet.fleet.attribution.device_index import DeviceIndex, IndexedDevice, UnresolvedName
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.holder import DeviceName, Naming

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
MIG = "MIG-cccccccc-0000-0000-0000-000000000000"
MDEV = "dddddddd-0000-0000-0000-000000000000"


def gpu(uuid: str, address: str) -> View:
    return View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=address)


def mig(uuid: str, parent: View, instance: str) -> View:
    return View(kind=ViewKind.MIG, side=Side.HOST, uuid=uuid, parent=parent.key, instance=instance)


FIRST, SECOND = gpu(A, "0000:1b:00.0"), gpu(B, "0000:3b:00.0")
SLICE = mig(MIG, SECOND, "9/0")
VGPU = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="vgpu-1", parent=FIRST.key, pci_address="0000:1b:00.0")
PASSED = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:5e:00.0")
INDEX = DeviceIndex(
    [
        IndexedDevice(FIRST, minor=0),
        IndexedDevice(SECOND, minor=1),
        IndexedDevice(SLICE),
        IndexedDevice(VGPU, mdev=MDEV.upper()),
        IndexedDevice(PASSED),
    ]
)


@pytest.mark.parametrize(
    ("naming", "text", "view"),
    [
        (Naming.UUID, A, FIRST),
        (Naming.UUID, A.upper(), FIRST),
        (Naming.UUID, MIG, SLICE),
        (Naming.PCI, "00000000:3B:00.0", SECOND),
        (Naming.PCI, "0000:1b:00.0", FIRST),
        (Naming.PCI, "0000:5e:00.0", PASSED),
        (Naming.MDEV, MDEV, VGPU),
        (Naming.MINOR, "1", SECOND),
        (Naming.MIG_OF_GPU, f"{B}/9/0", SLICE),
        (Naming.MIG_OF_GPU, f"{B}/9", SLICE),
        (Naming.MIG_OF_MINOR, "1/9", SLICE),
        (Naming.VIEW, SLICE.key, SLICE),
    ],
)
def test_name_resolves_by_identity(naming: Naming, text: str, view: View) -> None:
    assert INDEX.resolve(DeviceName(naming, text)) == view.key


@pytest.mark.parametrize(
    ("naming", "text"),
    [
        (Naming.UUID, "GPU-eeeeeeee-0000-0000-0000-000000000000"),
        (Naming.PCI, "not an address"),
        (Naming.MDEV, "not a UUID"),
        (Naming.MINOR, "7"),
        (Naming.MIG_OF_MINOR, "1/8"),
        (Naming.IOMMU_GROUP, "42"),
        (Naming.UNRESOLVED, A),
    ],
)
def test_unknown_or_ambiguous_name_does_not_resolve(naming: Naming, text: str) -> None:
    found = INDEX.resolve(DeviceName(naming, text))

    assert isinstance(found, UnresolvedName)
    assert found.name.text == text


def test_gpu_instance_with_two_compute_instances_is_ambiguous() -> None:
    other = mig("MIG-cccccccc-0000-0000-0000-000000000001", SECOND, "9/1")
    index = DeviceIndex([IndexedDevice(SECOND, minor=1), IndexedDevice(SLICE), IndexedDevice(other)])

    found = index.resolve(DeviceName(Naming.MIG_OF_MINOR, "1/9"))
    assert isinstance(found, UnresolvedName)
    assert found.is_ambiguous
    assert not index.resolve(DeviceName(Naming.MIG_OF_MINOR, "1/7")).is_ambiguous  # type: ignore[union-attr]
    assert index.resolve(DeviceName(Naming.MIG_OF_MINOR, "1/9/1")) == other.key


def test_leaves_leave_out_split_gpus() -> None:
    assert INDEX.leaves == [SLICE.key, VGPU.key, PASSED.key]
