"""Network interfaces, and ports of InfiniBand and RoCE adapters."""

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
)
from gpufleet.readers.host.parse.pci import basename
from gpufleet.readers.host.parse.text import count, decode, shown
from gpufleet.readers.host.source import Source

COUNTERS = {
    f"host_network_{direction}_{metric}_total": f"statistics/{way}_{name}"
    for metric, name in (("bytes", "bytes"), ("packets", "packets"), ("errors", "errors"), ("drops", "dropped"))
    for direction, way in (("receive", "rx"), ("transmit", "tx"))
}
"""Metric to file of the interface."""

LINKED_CLASSES = ("physical", "virtual_function", "bond")
"""Classes with a link whose speed is measured. The kernel makes up one for others: 10 Gbit/s for a veth,
10 Mbit/s for a tap."""

MADE_UP = Absent(Reason.NO_DATA, "the interface is virtual: it has no speed of its own")
NO_LINK = Absent(Reason.NO_DATA, "the kernel does not know the speed: no link, or the driver does not tell")
NO_STATE = Absent(Reason.NO_DATA, "the kernel does not know the state")
PORT_DOWN = Absent(Reason.NO_DATA, "the port is down")
NO_COUNTER = Absent(Reason.NOT_SUPPORTED, "the adapter does not count it")


def map_network(source: Source, into: Readings) -> None:
    """Add state, speed and counters of every interface."""
    for name in source.names_under(plan.NET, "operstate"):
        folder = f"{plan.NET}/{name}"
        kind = classify(_interface(source, name))
        labels = (shown(name), kind)
        into.dim("host_network_up", labels, _up(source, folder))
        if kind in LINKED_CLASSES:
            into.dim("host_network_speed_bytes_per_second", labels, _speed(source, f"{folder}/speed"))
        else:
            into.dim("host_network_speed_bytes_per_second", labels, MADE_UP)
        for metric, file in COUNTERS.items():
            into.dim(metric, labels, source.take(f"{folder}/{file}", _count))


def _up(source: Source, folder: str) -> int | Absent:
    """Take whether an interface is operational."""
    operstate = source.take(f"{folder}/operstate", _word)
    if isinstance(operstate, Absent):
        return operstate
    carrier: str | None = None
    if f"{folder}/carrier" in source.fetched.files:
        carrier = _word(source.fetched.files[f"{folder}/carrier"], folder)
    elif source.fetched.errors.get(f"{folder}/carrier") != "EINVAL":
        carrier = ""  # EINVAL is the kernel's word for an interface set down; other failures tell nothing
    up = is_up(operstate, carrier)
    return NO_STATE if up is None else int(up)


def _speed(source: Source, path: str) -> int | Absent:
    """Take a link's speed; an interface that is set down or has none answers with an error or no file at all."""
    speed = source.take(path, parse_speed)
    untold = isinstance(speed, Absent) and speed.reason in (Reason.NO_DATA, Reason.NOT_SUPPORTED)
    return NO_LINK if speed is None or untold else speed


def map_infiniband(source: Source, into: Readings) -> None:
    """Add state, rate and counters of every port."""
    for adapter in sorted({path.split("/")[4] for path in source.fetched.files if path.startswith(plan.INFINIBAND)}):
        dev_ports = {
            interface: _word(source.fetched.files[path], path)
            for interface in source.names_under(f"{plan.INFINIBAND}/{adapter}/device/net", "dev_port")
            if (path := f"{plan.INFINIBAND}/{adapter}/device/net/{interface}/dev_port") in source.fetched.files
        }
        for port in source.names_under(f"{plan.INFINIBAND}/{adapter}/ports", "state"):
            if port.isascii() and port.isdecimal():
                _map_port(source, adapter, port, dev_ports, into)


def _map_port(source: Source, adapter: str, port: str, dev_ports: dict[str, str], into: Readings) -> None:
    folder = f"{plan.INFINIBAND}/{adapter}/ports/{port}"
    files = source.fetched.files
    gid_interface = decode(files.get(f"{folder}/gid_attrs/ndevs/0", b""))
    labels = (
        shown(adapter),
        port,
        link_layer(files.get(f"{folder}/link_layer")),
        port_interface(port, dev_ports, gid_interface),
    )
    state = source.take(f"{folder}/state", parse_port_state)
    into.dim("host_infiniband_port_state", labels, state)
    # The rate of a port that is down is a placeholder (the slowest there is).
    rate = PORT_DOWN if state in ("nop", "down") else source.take(f"{folder}/rate", parse_rate)
    into.dim("host_infiniband_rate_bytes_per_second", labels, rate)
    for metric, name in (("receive", "port_rcv_data"), ("transmit", "port_xmit_data")):
        path = f"{folder}/counters/{name}"
        octets = NO_COUNTER if _is_not_counted(files.get(path)) else source.take(path, parse_octets)
        into.dim(f"host_infiniband_{metric}_bytes_total", labels, octets)
    for name in ERROR_COUNTERS:
        path = f"{folder}/counters/{name}"
        if path in files or path in source.fetched.errors:
            errors = NO_COUNTER if _is_not_counted(files.get(path)) else source.take(path, _count)
            into.dim("host_infiniband_errors_total", (*labels, name), errors)


def _interface(source: Source, name: str) -> Interface:
    folder = f"{plan.NET}/{name}"
    files, links = source.fetched.files, source.fetched.links

    def word(file: str) -> str:
        return _word(files.get(f"{folder}/{file}", b""), folder)

    return Interface(
        name=name,
        driver=basename(links.get(f"{folder}/device/driver", "")),
        has_device=f"{folder}/device" in links,
        is_virtual_function=f"{folder}/device/physfn" in links,
        is_bridge=f"{folder}/bridge/bridge_id" in files,
        is_bond=f"{folder}/bonding/mode" in files,
        is_tap=f"{folder}/tun_flags" in files,
        kind=parse_uevent(files.get(f"{folder}/uevent", b"")).get("DEVTYPE", ""),
        hardware_type=word("type"),
        index=word("ifindex"),
        linked_index=word("iflink"),
        port_name=word("phys_port_name"),
    )


def _word(content: bytes, where: str) -> str:
    return shown(decode(content))


def _count(content: bytes, where: str) -> int:
    return count(decode(content), where)


def _is_not_counted(content: bytes | None) -> bool:
    """Tell whether the kernel says `N/A (no PMA)`, as for functions that the subnet's manager may not ask."""
    return content is not None and content.startswith(b"N/A")
