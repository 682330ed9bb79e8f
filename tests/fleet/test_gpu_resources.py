"""Names of extended resources and drivers."""

import pytest

from gpufleet.fleet.gpu_resources import gpu_resource_kind, is_gpu_driver
from gpufleet.model.kubernetes import GpuResourceKind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvidia.com/gpu", GpuResourceKind.GPU),
        ("amd.com/gpu", GpuResourceKind.GPU),
        ("gpu.intel.com/xe", GpuResourceKind.GPU),
        ("habana.ai/gaudi", GpuResourceKind.GPU),
        ("nvidia.com/gpu.shared", GpuResourceKind.SHARED),
        ("nvidia.com/mig-1g.10gb", GpuResourceKind.MIG),
        ("nvidia.com/mig-1g.10gb.shared", GpuResourceKind.SHARED),
        ("nvidia.com/GA102GL_A10", GpuResourceKind.PRODUCT),
        ("nvidia.com/NVIDIA_A10-12Q", GpuResourceKind.PRODUCT),
        ("nvidia.com/hostdev", None),
        ("nvidia.com/mlnxnics", None),
        ("nvidia.com/nvswitch", None),
        ("amd.com/xilinx_u250", None),
        ("rdma/hca_shared_devices_a", None),
        ("cpu", None),
        ("nvidia", None),
        ("example.com/nvidia-gpu", None),
    ],
)
def test_kind_of_a_resource(name: str, kind: GpuResourceKind | None) -> None:
    assert gpu_resource_kind(name) is kind


@pytest.mark.parametrize(
    ("driver", "is_gpu"),
    [("gpu.nvidia.com", True), ("gpu.intel.com", True), ("compute-domain.nvidia.com", False), ("cpu.example", False)],
)
def test_drivers_of_gpus(driver: str, is_gpu: bool) -> None:
    assert is_gpu_driver(driver) is is_gpu
