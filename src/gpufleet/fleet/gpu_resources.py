"""Extended resources and drivers of Kubernetes that stand for GPUs, by their names."""

from gpufleet.model.kubernetes import GpuResourceKind

_VENDORS = ("nvidia", "amd.com", "gpu.intel.com", "habana.ai")

OTHER_DEVICES = ("hostdev", "rdma", "mlnx", "sriov", "roce", "xilinx", "nvswitch", "compute-domain", "imex")
"""Parts of names of network cards, FPGAs, switches and channels of the same vendors."""


def _is_of_gpu_vendor(name: str) -> bool:
    """Return whether the name of a resource or driver has the name of a GPU vendor."""
    return any(vendor in name for vendor in _VENDORS)


def is_gpu_driver(name: str) -> bool:
    """Return whether a DRA driver's devices are GPUs: `gpu.nvidia.com` is, `compute-domain.nvidia.com` is not."""
    return _is_of_gpu_vendor(name) and not any(part in name for part in OTHER_DEVICES)


def gpu_resource_kind(name: str) -> GpuResourceKind | None:
    """Return the kind of an extended resource, or None if it is not of GPUs.

    Replicas of shared GPUs are `shared` only if the device plugin renames the resource.
    """
    domain, slash, resource = name.partition("/")
    if not slash or not _is_of_gpu_vendor(domain) or any(part in resource.lower() for part in OTHER_DEVICES):
        return None
    if resource.endswith(".shared"):
        return GpuResourceKind.SHARED
    if resource.startswith("mig-"):
        return GpuResourceKind.MIG
    if resource in ("gpu", "pgpu", "gaudi", "gaudi2", "gaudi3", "i915", "xe"):
        return GpuResourceKind.GPU
    return GpuResourceKind.PRODUCT
