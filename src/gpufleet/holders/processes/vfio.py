"""GPUs behind open VFIO files, through which a virtual machine uses a device."""

import re
from pathlib import Path

from gpufleet.codecs.sysfs_devices import is_gpu_class
from gpufleet.model.view import normalise_pci_address, normalise_uuid
from gpufleet.ports.holder import DeviceName, Naming

_GROUP = re.compile(r"/dev/vfio/([0-9]{1,9})(?: \(deleted\))?", re.ASCII)
_DEVICE = re.compile(r"/dev/vfio/devices/(vfio[0-9]{1,9})(?: \(deleted\))?", re.ASCII)
_FILE_BYTES = 256


def passed_through_devices(root: str, target: str, number: tuple[int, int] | None) -> tuple[DeviceName, ...]:
    """Return the GPUs that an open file gives access to: several if an IOMMU group has several.

    Args:
        root: folder that stands for `/`.
        target: path of the file, `/dev/vfio/GROUP` or `/dev/vfio/devices/vfioN`. The process chose where it is mounted.
        number: device number of the file, or None if it is not a device.
    """
    group = _GROUP.fullmatch(target)
    if group and _number(f"{root}/sys/class/vfio/{group[1]}/dev") == number is not None:
        return _group_devices(root, group[1])
    if device := _DEVICE.fullmatch(target):
        folder = f"{root}/sys/class/vfio-dev/{device[1]}"
        if _number(f"{folder}/dev") == number is not None:
            found = _device_name(root, _parent(folder, 2))
            return () if found is None else (found,)
    return ()


def _group_devices(root: str, group: str) -> tuple[DeviceName, ...]:
    """Return the GPUs or mediated devices of a group, in order of their names."""
    try:
        members = sorted(entry.name for entry in Path(f"{root}/sys/kernel/iommu_groups/{group}/devices").iterdir())
    except OSError:
        return ()
    return tuple(name for name in (_device_name(root, member) for member in members) if name is not None)


def _device_name(root: str, device: str) -> DeviceName | None:
    """Return the name of a PCI function or mediated device of an NVIDIA GPU, or None if it is another device."""
    if mdev := normalise_uuid(device):
        parent = _parent(f"{root}/sys/bus/mdev/devices/{device}", 1)
        return DeviceName(Naming.MDEV, mdev, device) if _is_gpu(root, parent) else None
    if not _is_gpu(root, device):
        return None
    return DeviceName(Naming.PCI, normalise_pci_address(device), device)


def _is_gpu(root: str, address: str) -> bool:
    folder = f"{root}/sys/bus/pci/devices/{address}"
    return is_gpu_class(_read(f"{folder}/vendor"), _read(f"{folder}/class")) is True


def _parent(link: str, levels: int) -> str:
    """Return the name of a folder around the target of a link."""
    try:
        return Path(link).readlink().parts[-1 - levels]
    except (OSError, IndexError):
        return ""


def _number(path: str) -> tuple[int, int] | None:
    major, _, minor = _read(path).strip().partition(b":")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb", buffering=0) as file:
            return file.read(_FILE_BYTES) or b""
    except OSError:
        return b""
