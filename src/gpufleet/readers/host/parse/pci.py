"""Parsers of /sys/bus/pci/devices: display controllers."""

import re

from gpufleet.model.errors import WireError
from gpufleet.model.machine import PciFunction
from gpufleet.readers.host.parse.text import decode, hexadecimal, printable

DISPLAY_CLASS = 0x03
"""Base class of display controllers: 0x0300 VGA, 0x0302 3D, 0x0380 other (PCI Code and ID Assignment)."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_NODE = re.compile(r"-?[0-9]{1,6}", re.ASCII)


def is_address(text: str) -> bool:
    """Return whether `text` is a PCI address in the format of sysfs."""
    return _ADDRESS.fullmatch(text) is not None


def is_display(content: bytes, where: str) -> bool:
    """Return whether the content of `class` is that of a display controller.

    Raises:
        WireError: if the content is not a class.
    """
    return hexadecimal(decode(content), where) >> 16 == DISPLAY_CLASS


def parse_function(
    address: str,
    files: dict[str, bytes],
    *,
    driver: str | None,
    physical_function: str | None,
    numa_node: int | None,
) -> PciFunction:
    """Build the record of one PCI function.

    Args:
        address: in the format of sysfs.
        files: content of `vendor`, `device` and `class`.
        driver: target of the link `driver`, or None without a driver.
        physical_function: target of the link `physfn`, or None.
        numa_node: see `parse_numa_node`; None if unknown.

    Raises:
        WireError: if a file is missing or malformed; names the file.
    """
    numbers: dict[str, int] = {}
    for name in ("vendor", "device", "class"):
        where = f"/sys/bus/pci/devices/{address}/{name}"
        if name not in files:
            raise WireError(where, "cannot be read")
        numbers[name] = hexadecimal(decode(files[name]), where)
    parent = basename(physical_function) if physical_function is not None else None
    return PciFunction(
        address=address,
        vendor=numbers["vendor"],
        device=numbers["device"],
        class_code=numbers["class"],
        driver=basename(driver) if driver is not None else None,
        numa_node=numa_node,
        physical_function=parent if parent is not None and is_address(parent) else None,
    )


def basename(link: str) -> str:
    """Return the last component of a link's target."""
    return link.rstrip("/").rpartition("/")[2]


def parse_numa_node(content: bytes, where: str) -> int | None:
    """Parse `numa_node`: the node's number, or None if the platform does not report it (-1).

    Raises:
        WireError: if the content is not a number.
    """
    text = decode(content).strip()
    if _NODE.fullmatch(text) is None:
        raise WireError(where, f"{printable(text)[:40]!r} is not a NUMA node")
    node = int(text)
    return node if node >= 0 else None
