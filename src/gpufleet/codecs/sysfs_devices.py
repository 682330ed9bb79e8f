"""NVIDIA GPUs among the devices that a host passes to virtual machines, by its sysfs. Pure."""

from collections.abc import Iterable

from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.ports.channel import FetchPlan, FetchResult

_DISPLAY_CLASSES = (b"0x0300", b"0x0302", b"0x0380")
_PCI, _MDEV = "/sys/bus/pci/devices", "/sys/bus/mdev/devices"


def plan_mdevs(mdevs: Iterable[str]) -> FetchPlan:
    """Return the plan that fetches the parents of mediated devices, which are given by UUID."""
    return FetchPlan(links=tuple(f"{_MDEV}/{mdev}" for mdev in sorted(set(mdevs))))


def parent_of(fetched: FetchResult, mdev: str) -> str:
    """Return the PCI address of a mediated device's parent, or an empty text if the kernel does not show it.

    The parent's folder contains the device's folder.
    """
    return fetched.links.get(f"{_MDEV}/{mdev}", "").rstrip("/").rpartition("/")[0].rpartition("/")[2]


def plan_functions(addresses: Iterable[str]) -> FetchPlan:
    """Return the plan that fetches vendor and class of PCI functions."""
    files = [f"{_PCI}/{pci}/{name}" for pci in sorted({*addresses} - {""}) for name in ("vendor", "class")]
    return FetchPlan(files=tuple(files))


def is_gpu(fetched: FetchResult, address: str) -> bool | None:
    """Return whether a PCI function is an NVIDIA GPU or a virtual function of one; None if unknown."""
    folder = f"{_PCI}/{address}"
    return is_gpu_class(fetched.files.get(f"{folder}/vendor", b""), fetched.files.get(f"{folder}/class", b""))


def is_gpu_class(vendor: bytes, kind: bytes) -> bool | None:
    """Return whether the files `vendor` and `class` of a PCI function are those of an NVIDIA GPU; None if empty."""
    vendor, kind = vendor.strip(), kind.strip()
    if not vendor or not kind:
        return None
    return vendor == f"0x{NVIDIA_VENDOR:04x}".encode() and kind[:6] in _DISPLAY_CLASSES
