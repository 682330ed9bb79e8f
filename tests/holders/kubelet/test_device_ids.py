"""Device ids of every plugin."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.kubelet.device_ids import MAX_ORIGINAL, name_device
from gpufleet.model.holdings import Share
from gpufleet.ports.holder import Naming
from tests.support import recorded_kubelet

UUID = "7f5e7c15-0000-4000-8000-000000000001"
GPU = "nvidia.com/gpu"
CDI = {"nvidia.com/gpu=0": (Naming.MINOR, "3")}


@pytest.mark.parametrize(
    ("id_", "resource", "naming", "text", "share", "replica"),
    [
        (f"GPU-{UUID}", GPU, Naming.UUID, f"GPU-{UUID}", Share.EXCLUSIVE, False),
        (f"GPU-{UUID.upper()}", GPU, Naming.UUID, f"GPU-{UUID}", Share.EXCLUSIVE, False),
        (f"GPU-{UUID}", "example.org/accelerator", Naming.UUID, f"GPU-{UUID}", Share.EXCLUSIVE, False),
        (f"MIG-{UUID}", "nvidia.com/mig-1g.10gb", Naming.UUID, f"MIG-{UUID}", Share.MIG, False),
        (f"MIG-GPU-{UUID}/7/0", GPU, Naming.MIG_OF_GPU, f"GPU-{UUID}/7/0", Share.MIG, False),
        (f"GPU-{UUID}::3", "nvidia.com/gpu.shared", Naming.UUID, f"GPU-{UUID}", Share.TIMESLICE, True),
        (f"MIG-{UUID}::0", GPU, Naming.UUID, f"MIG-{UUID}", Share.TIMESLICE, True),
        (f"MIG-GPU-{UUID}/7/0::1", GPU, Naming.MIG_OF_GPU, f"GPU-{UUID}/7/0", Share.TIMESLICE, True),
        ("nvidia0", GPU, Naming.MINOR, "0", Share.EXCLUSIVE, False),
        ("nvidia12/gi3", GPU, Naming.MIG_OF_MINOR, "12/3", Share.MIG, False),
        ("nvidia0/vgpu1", GPU, Naming.MINOR, "0", Share.TIMESLICE, True),
        ("nvidia0/gi3/vgpu10", GPU, Naming.MIG_OF_MINOR, "0/3", Share.TIMESLICE, True),
        ("0000:3B:00.0", "nvidia.com/GH100_H100", Naming.PCI, "0000:3b:00.0", Share.EXCLUSIVE, False),
        ("00000000:3b:00.0", "amd.com/gpu", Naming.PCI, "0000:3b:00.0", Share.EXCLUSIVE, False),
        (UUID, "nvidia.com/NVIDIA_A16-4Q", Naming.MDEV, UUID, Share.VGPU, False),
        ("nvidia.com/gpu=0", GPU, Naming.MINOR, "3", Share.EXCLUSIVE, False),
        ("nvidia.com/gpu=1", GPU, Naming.UNRESOLVED, "nvidia.com/gpu=1", Share.EXCLUSIVE, False),
        ("amdgpu_xcp_30", "amd.com/gpu", Naming.UNRESOLVED, "amdgpu_xcp_30", Share.EXCLUSIVE, False),
        ("5", GPU, Naming.UNRESOLVED, "5", Share.EXCLUSIVE, False),
        ("new-form", "nvidia.com/anything", Naming.UNRESOLVED, "new-form", Share.EXCLUSIVE, False),
        ("new-form::1", GPU, Naming.UNRESOLVED, "new-form", Share.TIMESLICE, True),
    ],
)
def test_id_is_named_by_its_form(
    id_: str, resource: str, naming: Naming, text: str, share: Share, replica: bool
) -> None:
    named = name_device(id_, resource, "train-0", CDI)
    assert named is not None
    assert (named.device.naming, named.device.text, named.share, named.replica) == (naming, text, share, replica)


@pytest.mark.parametrize(
    ("id_", "resource", "pod"),
    [
        ("kvm7", "devices.kubevirt.io/kvm", "virt-launcher-a"),
        ("17", "rdma/hca_shared", "virt-launcher-a"),  # not the IOMMU group 17
        ("17", "nvidia.com/rdma_shared", "train-0"),
        ("card0-0", "example.org/card", "train-0"),
        ("mlx5_2", "nvidia.com/hostdev", "train-0"),
        ("17", "nvidia.com/hostdev", "virt-launcher-a"),
        ("nvidia0x", "example.org/card", "train-0"),
        ("", "example.org/card", "train-0"),
    ],
)
def test_id_of_another_device_is_ignored(id_: str, resource: str, pod: str) -> None:
    assert name_device(id_, resource, pod, CDI) is None


def test_number_is_an_iommu_group_only_in_a_launcher_pod() -> None:
    resource = "nvidia.com/TU104GL_Tesla_T4"
    named = name_device("42", resource, "virt-launcher-t4-b2n4v", {})
    assert named is not None
    assert (named.device.naming, named.device.text) == (Naming.IOMMU_GROUP, "42")
    assert name_device("42", resource, "train-0", {}) is None


ALLOCATABLE = recorded_kubelet.answers("GetAllocatableResources")


@pytest.mark.parametrize(("scenario", "answer"), ALLOCATABLE, ids=[name for name, _ in ALLOCATABLE])
def test_every_recorded_allocatable_id_has_a_known_form(scenario: str, answer: dict[str, str]) -> None:
    devices = json.loads(recorded_kubelet.files()[answer["json"]]).get("devices", [])
    for entry in devices:
        for id_ in entry["device_ids"]:
            named = name_device(id_, entry["resource_name"], "virt-launcher-a", {})
            assert named is not None
            assert named.device.naming is not Naming.UNRESOLVED


@given(st.text(max_size=600), st.sampled_from([GPU, "rdma/hca", "nvidia.com/X"]), st.text(max_size=20))
def test_arbitrary_id_gives_a_bounded_name(id_: str, resource: str, pod: str) -> None:
    named = name_device(id_, resource, pod, {})
    if named is not None:
        assert max(len(named.device.text), len(named.device.original)) <= MAX_ORIGINAL
        assert named.device.text.isprintable() or named.device.naming is Naming.UNRESOLVED
