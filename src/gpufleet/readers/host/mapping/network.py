"""Mapping of network interfaces, and of ports of InfiniBand and RoCE adapters."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.readers.host import plan
from gpufleet.readers.host.mapping import Readings
from gpufleet.readers.host.parse.network import (
    ERROR_COUNTERS,
    Interface,
    classify,
    is_up,
    link_layer,
    parse_octets,
    parse_port_state,
    parse_rate,
    parse_speed,
    parse_uevent,
    port_interface,
    uncounted_errors,
)
from gpufleet.readers.host.parse.pci import basename
from gpufleet.readers.host.parse.text import count, decode, printable
from gpufleet.readers.host.source import FetchedFiles

COUNTERS = {
    f"host_network_{direction}_{metric}_total": f"statistics/{way}_{name}"
    for metric, name in (("bytes", "bytes"), ("packets", "packets"), ("errors", "errors"), ("drops", "dropped"))
    for direction, way in (("receive", "rx"), ("transmit", "tx"))
}
"""Metric to file in the interface's directory."""

LINKED_CLASSES = ("physical", "virtual_function", "bond")
"""Classes with a real link speed. For others the kernel reports a constant: 10 Gbit/s for a veth, 10 Mbit/s for a
tap."""

VIRTUAL_SPEED = Absent(Reason.NO_DATA, "a virtual interface has no speed of its own")
NO_LINK = Absent(Reason.NO_DATA, "the kernel does not know the speed: no link, or no support by the driver")
NO_STATE = Absent(Reason.NO_DATA, "the kernel does not know the state")
PORT_DOWN = Absent(Reason.NO_DATA, "the port is down")
NO_COUNTER = Absent(Reason.NOT_SUPPORTED, "the adapter does not count it")


def map_network(source: FetchedFiles, into: Readings) -> None:
    """Add state, speed and counters of every interface."""
    for name in source.names_under(plan.NET, "operstate"):
        folder = f"{plan.NET}/{name}"
        kind = classify(_interface(source, name))
        labels = (printable(name), kind)
        into.dim("host_network_up", labels, _up(source, folder))
        if kind in LINKED_CLASSES:
            into.dim("host_network_speed_bytes_per_second", labels, _speed(source, f"{folder}/speed"))
        else:
            into.dim("host_network_speed_bytes_per_second", labels, VIRTUAL_SPEED)
        for metric, file in COUNTERS.items():
            into.dim(metric, labels, source.take(f"{folder}/{file}", _count))


def _up(source: FetchedFiles, folder: str) -> int | Absent:
    """Return 1 if an interface is operational, otherwise 0."""
    operstate = source.take(f"{folder}/operstate", _text)
    if isinstance(operstate, Absent):
        return operstate
    carrier: str | None = None
    if f"{folder}/carrier" in source.fetched.files:
        carrier = _text(source.fetched.files[f"{folder}/carrier"], folder)
    elif source.fetched.errors.get(f"{folder}/carrier") != "EINVAL":
        carrier = ""  # EINVAL means that the interface is set down; other errors leave the state unknown
    up = is_up(operstate, carrier)
    return NO_STATE if up is None else int(up)


def _speed(source: FetchedFiles, path: str) -> int | Absent:
    """Return a link's speed; without a link or while set down, the file is missing or fails to read."""
    speed = source.take(path, parse_speed)
    unknown = isinstance(speed, Absent) and speed.reason in (Reason.NO_DATA, Reason.NOT_SUPPORTED)
    return NO_LINK if speed is None or unknown else speed


def map_infiniband(source: FetchedFiles, into: Readings) -> None:
    """Add state, rate and counters of every port."""
    for adapter in sorted({path.split("/")[4] for path in source.fetched.files if path.startswith(plan.INFINIBAND)}):
        dev_ports = {
            interface: _text(source.fetched.files[path], path)
            for interface in source.names_under(f"{plan.INFINIBAND}/{adapter}/device/net", "dev_port")
            if (path := f"{plan.INFINIBAND}/{adapter}/device/net/{interface}/dev_port") in source.fetched.files
        }
        for port in source.names_under(f"{plan.INFINIBAND}/{adapter}/ports", "state"):
            if port.isascii() and port.isdecimal():
                _map_port(source, adapter, port, dev_ports, into)


def _map_port(source: FetchedFiles, adapter: str, port: str, dev_ports: dict[str, str], into: Readings) -> None:
    pci = f"{plan.INFINIBAND}/{adapter}/device"
    folder = f"{plan.INFINIBAND}/{adapter}/ports/{port}"
    files = source.fetched.files
    gid_interface = decode(files.get(f"{folder}/gid_attrs/ndevs/0", b""))
    layer = link_layer(files.get(f"{folder}/link_layer"))
    labels = (printable(adapter), port, layer, port_interface(port, dev_ports, gid_interface))
    state = source.take(f"{folder}/state", parse_port_state)
    into.dim("host_infiniband_port_state", labels, state)
    # The rate of a port that is down is a placeholder (the slowest rate).
    rate = PORT_DOWN if state in ("nop", "down") else source.take(f"{folder}/rate", parse_rate)
    into.dim("host_infiniband_rate_bytes_per_second", labels, rate)
    for metric, name in (("receive", "port_rcv_data"), ("transmit", "port_xmit_data")):
        path = f"{folder}/counters/{name}"
        octets = NO_COUNTER if _is_not_counted(files.get(path)) else source.take(path, parse_octets)
        into.dim(f"host_infiniband_{metric}_bytes_total", labels, octets)
    driver = basename(source.fetched.links.get(f"{pci}/driver", ""))
    uncounted = uncounted_errors(driver, _text(files.get(f"{pci}/device", b""), pci), layer)
    for name in ERROR_COUNTERS:
        path = f"{folder}/counters/{name}"
        if path in files or path in source.fetched.errors:
            errors = NO_COUNTER if _is_not_counted(files.get(path)) else source.take(path, _count)
            is_constant = errors == 0 and name in uncounted
            into.dim("host_infiniband_errors_total", (*labels, name), NO_COUNTER if is_constant else errors)


def _interface(source: FetchedFiles, name: str) -> Interface:
    folder = f"{plan.NET}/{name}"
    files, links = source.fetched.files, source.fetched.links

    def text(file: str) -> str:
        return _text(files.get(f"{folder}/{file}", b""), folder)

    return Interface(
        name=name,
        driver=basename(links.get(f"{folder}/device/driver", "")),
        has_device=f"{folder}/device" in links,
        is_virtual_function=f"{folder}/device/physfn" in links,
        is_bridge=f"{folder}/bridge/bridge_id" in files,
        is_bond=f"{folder}/bonding/mode" in files,
        is_tap=f"{folder}/tun_flags" in files,
        kind=parse_uevent(files.get(f"{folder}/uevent", b"")).get("DEVTYPE", ""),
        hardware_type=text("type"),
        index=text("ifindex"),
        linked_index=text("iflink"),
        port_name=text("phys_port_name"),
    )


def _text(content: bytes, where: str) -> str:
    return printable(decode(content))


def _count(content: bytes, where: str) -> int:
    return count(decode(content), where)


def _is_not_counted(content: bytes | None) -> bool:
    """Return whether the kernel reports `N/A (no PMA)`, as for functions hidden from the subnet manager."""
    return content is not None and content.startswith(b"N/A")
