"""The disk behind a block device: /sys/class/block and udev's notes."""

import msgspec

from gpufleet.readers.host.parse.pci import basename
from gpufleet.readers.host.parse.text import decode, shown


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A block device as sysfs shows it.

    Attributes:
        name: the kernel's, such as `nvme0n1p2` or `dm-0`.
        link: text of its link in /sys/class/block.
        is_partition: whether it is one.
        parts: names of the devices it is made of (device mapper, RAID).
    """

    name: str
    link: str
    is_partition: bool
    parts: tuple[str, ...]


def below(device: BlockDevice) -> tuple[str, ...]:
    """Return the devices one step down: what it is made of, or the disk of a partition; empty for a disk."""
    if device.parts:
        return device.parts
    if device.is_partition:
        return (basename(device.link.rpartition("/")[0]),)
    return ()


def parse_udev(content: bytes) -> dict[str, str]:
    """Read the properties (`E:NAME=value`) of udev's note on a device."""
    rows = (row[2:].partition("=") for row in decode(content).splitlines() if row.startswith("E:"))
    return {name: shown(value) for name, eq, value in rows if eq}
