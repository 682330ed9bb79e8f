"""/sys/class/infiniband: ports of InfiniBand and RoCE adapters."""

import re

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import MAX_COUNT, count, decode, shown

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
"""Files under `counters/` that count something gone wrong."""

_RATE = re.compile(r"([0-9]{1,6})(?:\.([0-9]))? Gb/sec( .*)?", re.ASCII)
_STATE = re.compile(r"([0-9]): ?([A-Z_]*)", re.ASCII)


def parse_port_state(content: bytes, where: str) -> str:
    """Read a port's logical state, such as `4: ACTIVE`.

    Raises:
        WireError: if it is none of `PORT_STATES`.
    """
    text = decode(content).strip()
    match = _STATE.fullmatch(text)
    if match is None or int(match[1]) >= len(PORT_STATES):
        raise WireError(where, f"{shown(text)[:40]!r} is not a port state")
    return PORT_STATES[int(match[1])]


def parse_rate(content: bytes, where: str) -> int:
    """Read a port's rate, such as `400 Gb/sec (4X NDR)`, in bytes per second.

    Raises:
        WireError: if it is anything else.
    """
    text = decode(content).strip()
    match = _RATE.fullmatch(text)
    if match is None:
        raise WireError(where, f"{shown(text)[:40]!r} is not a rate")
    tenths = int(match[1]) * 10 + int(match[2] or 0)
    return tenths * 12_500_000


def parse_octets(content: bytes, where: str) -> int:
    """Read port_rcv_data or port_xmit_data: the specification counts these in units of four octets.

    Raises:
        WireError: if it is not a count, or beyond every counter.
    """
    value = count(decode(content), where) * 4
    if value > MAX_COUNT:
        raise WireError(where, f"{value} is beyond every counter")
    return value


def link_layer(content: bytes | None) -> str:
    """Name the link layer as a label: `infiniband`, `ethernet`, or empty where it is not told."""
    text = decode(content).strip().lower() if content is not None else ""
    return text if text in ("infiniband", "ethernet") else ""


def port_interface(port: str, dev_ports: dict[str, str], gid_interface: str) -> str:
    """Return the network interface of a port, or an empty string where nothing tells it surely.

    An adapter with several ports behind one PCI function shows all its interfaces to every port; the
    interface's `dev_port` counts from 0 where ports count from 1. Where that leaves none or several
    (bonded adapters), the interface of the port's first address decides.

    Args:
        port: number of the port.
        dev_ports: interface to its `dev_port`, for the interfaces of the adapter.
        gid_interface: content of `gid_attrs/ndevs/0`, or empty.
    """
    matching = [name for name, dev_port in dev_ports.items() if dev_port.isdecimal() and int(dev_port) + 1 == int(port)]
    if len(matching) == 1:
        return matching[0]
    return shown(gid_interface)
