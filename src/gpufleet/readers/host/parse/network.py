"""Parsers of /sys/class/net (interfaces) and /sys/class/infiniband (ports of InfiniBand and RoCE adapters)."""

import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import MAX_COUNT, count, decode, printable

MEGABIT = 125_000
"""Bytes in a megabit, the unit of sysfs's `speed`."""

_ARPHRD_ETHER, _ARPHRD_LOOPBACK = "1", "772"  # linux/if_arp.h

_REPRESENTOR = re.compile(r"(c[0-9]+)?pf[0-9]+(vf|sf)[0-9]+", re.ASCII)
"""`phys_port_name` of a representor, the interface of a virtual function's port inside the adapter."""


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """Network interface in sysfs; missing attributes are empty.

    Attributes:
        name: of the interface.
        driver: basename of the device's driver link.
        has_device: whether it has a device.
        is_virtual_function: whether that device is an SR-IOV virtual function.
        is_bridge, is_bond, is_tap: whether it has the files of that type.
        kind: DEVTYPE of its uevent (`bridge`, `vlan`, ...).
        hardware_type, index, linked_index: sysfs's `type`, `ifindex` and `iflink`.
        port_name: sysfs's `phys_port_name`.
    """

    name: str
    driver: str = ""
    has_device: bool = False
    is_virtual_function: bool = False
    is_bridge: bool = False
    is_bond: bool = False
    is_tap: bool = False
    kind: str = ""
    hardware_type: str = ""
    index: str = ""
    linked_index: str = ""
    port_name: str = ""


def classify(interface: Interface) -> str:
    """Return the class of an interface, one of the catalogue's `INTERFACE_CLASSES`.

    tmfifo is the management link between a host and its BlueField. On the host rshim creates it, as a tap named
    `tmfifo_net…`; on the BlueField its driver is mlxbf-tmfifo. A veth is recognised by its peer: no other virtual
    Ethernet interface has a linked index and no kind.
    """
    if interface.hardware_type == _ARPHRD_LOOPBACK:
        return "loopback"
    if interface.driver in ("mlxbf-tmfifo", "mlxbf_tmfifo") or interface.name.startswith("tmfifo_net"):
        return "tmfifo"
    if interface.is_bridge or interface.kind == "bridge":
        return "bridge"
    if interface.is_bond or interface.kind == "bond":
        return "bond"
    if interface.is_tap or interface.kind == "macvtap":
        return "tap"
    if interface.is_virtual_function:
        return "virtual_function"
    if interface.has_device:
        return "virtual" if _REPRESENTOR.fullmatch(interface.port_name) else "physical"
    has_peer = interface.linked_index not in ("", "0", interface.index)
    if interface.hardware_type == _ARPHRD_ETHER and not interface.kind and has_peer:
        return "veth"
    return "virtual"


def parse_uevent(content: bytes) -> dict[str, str]:
    """Parse the `KEY=value` lines of a uevent file."""
    return {key: value for key, eq, value in (row.partition("=") for row in decode(content).splitlines()) if eq}


def parse_speed(content: bytes, where: str) -> int | None:
    """Parse a link's speed, in bytes per second; None if the kernel does not know it.

    Raises:
        WireError: if the text is not a number, or above 100 Tbit/s.
    """
    text = decode(content).strip()
    # SPEED_UNKNOWN is -1, and older kernels print it unsigned.
    if text in ("-1", "4294967295", "65535", "0"):
        return None
    speed = count(text, where)
    if speed > 100_000_000:
        raise WireError(where, f"{speed} Mbit/s exceeds the range of link speeds")
    return speed * MEGABIT


def is_up(operstate: str, carrier: str | None) -> bool | None:
    """Return whether an interface is operational; None if unknown.

    Drivers without operational state report `unknown` (loopback, tun). Their carrier decides; an unreadable carrier
    (EINVAL) means that the interface is set down.

    Args:
        operstate: content of the file.
        carrier: content of the file; None for EINVAL, empty if unknown.
    """
    if operstate == "up":
        return True
    if operstate == "unknown":
        return {"1": True, "0": False, None: False}.get(carrier)
    if operstate in ("notpresent", "down", "lowerlayerdown", "testing", "dormant"):
        return False
    return None


PORT_STATES = ("nop", "down", "init", "armed", "active", "active_defer")
"""enum ib_port_state, by number (rdma/ib_verbs.h)."""

ERROR_COUNTERS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "symbol_error",
)
"""Error counters: files in `counters/`."""

_NOT_OF_OMNI_PATH = frozenset({"VL15_dropped", "symbol_error"})
_MLX4_VIRTUAL_FUNCTIONS = ("0x1002", "0x1004")
"""PCI device ids of virtual functions of ConnectX-2 and ConnectX-3."""

_RATE = re.compile(r"([0-9]{1,6})(?:\.([0-9]))? Gb/sec( .*)?", re.ASCII)
_STATE = re.compile(r"([0-9]): ?([A-Z_]*)", re.ASCII)


def parse_port_state(content: bytes, where: str) -> str:
    """Parse a port's logical state, such as `4: ACTIVE`.

    Raises:
        WireError: if the state is not one of `PORT_STATES`.
    """
    text = decode(content).strip()
    match = _STATE.fullmatch(text)
    if match is None or int(match[1]) >= len(PORT_STATES):
        raise WireError(where, f"{printable(text)[:40]!r} is not a port state")
    return PORT_STATES[int(match[1])]


def parse_rate(content: bytes, where: str) -> int:
    """Parse a port's rate, such as `400 Gb/sec (4X NDR)`, in bytes per second.

    Raises:
        WireError: if the text has another format.
    """
    text = decode(content).strip()
    match = _RATE.fullmatch(text)
    if match is None:
        raise WireError(where, f"{printable(text)[:40]!r} is not a rate")
    tenths = int(match[1]) * 10 + int(match[2] or 0)
    return tenths * 12_500_000


def parse_octets(content: bytes, where: str) -> int:
    """Parse port_rcv_data or port_xmit_data, in bytes; the InfiniBand specification counts in units of four octets.

    Raises:
        WireError: if the text is not a count, or exceeds `MAX_COUNT`.
    """
    value = count(decode(content), where) * 4
    if value > MAX_COUNT:
        raise WireError(where, f"{value} exceeds the range of counters")
    return value


def link_layer(content: bytes | None) -> str:
    """Return the link layer as a label: `infiniband`, `ethernet`, or empty if unknown."""
    text = decode(content).strip().lower() if content is not None else ""
    return text if text in ("infiniband", "ethernet") else ""


def uncounted_errors(driver: str, device: str, layer: str) -> frozenset[str]:
    """Return the error counters that the kernel's driver of an adapter fills with a constant 0.

    - `hfi1` (Omni-Path) has no counterpart for two of them.
    - `mlx4_core` fills in only octets and packets of ports with Ethernet, and of virtual functions.

    Args:
        driver: name of the driver, or empty if unknown.
        device: PCI device id of the adapter as in sysfs, or empty if unknown.
        layer: result of `link_layer`.
    """
    if driver == "hfi1":
        return _NOT_OF_OMNI_PATH
    if driver == "mlx4_core" and (layer == "ethernet" or device in _MLX4_VIRTUAL_FUNCTIONS):
        return frozenset(ERROR_COUNTERS)
    return frozenset()


def port_interface(port: str, dev_ports: dict[str, str], gid_interface: str) -> str:
    """Return the network interface of a port, or empty if it is ambiguous.

    An adapter with several ports on one PCI function lists all interfaces for every port. They are matched by
    `dev_port`, which starts at 0 while ports start at 1. If none or several match (bonded adapters), the interface of
    the port's first address is used.

    Args:
        port: number of the port.
        dev_ports: interface to its `dev_port`, for the interfaces of the adapter.
        gid_interface: content of `gid_attrs/ndevs/0`, or empty.
    """
    matching = [name for name, dev_port in dev_ports.items() if dev_port.isdecimal() and int(dev_port) + 1 == int(port)]
    if len(matching) == 1:
        return matching[0]
    return printable(gid_interface)
