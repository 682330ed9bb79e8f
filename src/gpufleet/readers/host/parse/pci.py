"""/sys/bus/pci/devices: display controllers."""

import re

from gpufleet.model.errors import WireError
from gpufleet.model.machine import PciFunction
from gpufleet.readers.host.parse.text import decode, hexadecimal, shown

DISPLAY_CLASS = 0x03
"""Base class of display controllers: 0x0300 VGA, 0x0302 3D, 0x0380 other (PCI Code and ID Assignment)."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_NODE = re.compile(r"-?[0-9]{1,6}", re.ASCII)


def is_address(text: str) -> bool:
    """Tell whether `text` is a PCI address as sysfs writes it."""
    return _ADDRESS.fullmatch(text) is not None


def is_display(content: bytes, where: str) -> bool:
    """Tell from the content of `class` whether the function is a display controller.

    Raises:
        WireError: if it is not a class.
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
    """Build the record of one function.

    Args:
        address: as sysfs writes it.
        files: content of `vendor`, `device` and `class`.
        driver: text of the link `driver`, or None when no driver is bound.
        physical_function: text of the link `physfn`, or None.
        numa_node: see `parse_numa_node`; None where it is not known.

    Raises:
        WireError: if a file is missing or malformed; it names the file.
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
    """Return the last name in a link's text."""
    return link.rstrip("/").rpartition("/")[2]


def parse_numa_node(content: bytes, where: str) -> int | None:
    """Read `numa_node`: the node's number, or None where the platform does not tell (-1).

    Raises:
        WireError: if it is no number.
    """
    text = decode(content).strip()
    if _NODE.fullmatch(text) is None:
        raise WireError(where, f"{shown(text)[:40]!r} is not a NUMA node")
    node = int(text)
    return node if node >= 0 else None
