"""Topology of a node as lines: NUMA node, PCIe link, NVLinks and fabric of each GPU. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.model.reading import DimReading, Reading
from gpufleet.model.snapshot import Device
from gpufleet.model.view import ViewKind
from gpufleet.top.lines import NOTHING, Line, Span, Style, cell, joined
from gpufleet.top.observation import ObservedNode, number_of, text_of
from gpufleet.top.rows import DeviceRow, row_key

NUMBER, TITLE, WIDE_TITLE, ADDRESS, PCIE, LINKS, ENDS = 6, 12, 22, 12, 12, 7, 11

WIDE = 112
"""Width from which rows have a wider name and all facts of the fabric."""

_ENDS = {"switch": "NVSwitch", "gpu": "GPU", "npu": "NPU", "unknown": "?"}
"""Types of the device at the other end of an NVLink, by label of `gpu_nvlink_peers`."""

_MAX_DOWN = 18
"""Maximum number of links in the line of links that are down."""

_PEER = 20
"""Width of a GPU in the line of GPUs that are linked directly."""


class GpuLinks(msgspec.Struct, frozen=True, kw_only=True):
    """Links of a GPU; None is unknown.

    Attributes:
        address: PCI address.
        numa_node: NUMA node of its slot.
        pcie: generation and width of the PCIe link, now and at most: `5x16/5x16`.
        is_narrow: whether the PCIe link has fewer lanes than it could have.
        nvlinks, active: number of NVLinks, and of those that are up.
        down: links that are down, in order of their numbers.
        ends: type of the device at the other end to number of links.
        peers: PCI address of each GPU that is linked directly to number of links.
        fabric: progress of joining the fabric, result, health and clique; empty if unknown.
        is_healthy: whether the GPU joined its fabric and is healthy in it; None if that is unknown.
    """

    address: str | None
    numa_node: int | None
    pcie: str
    is_narrow: bool
    nvlinks: int | None
    active: int | None
    down: tuple[str, ...]
    ends: Mapping[str, int]
    peers: Mapping[str, int]
    fabric: tuple[str, ...]
    is_healthy: bool | None


def gpu_links(node: ObservedNode) -> dict[str, GpuLinks]:
    """Return the links of each GPU of a node, by the key of its row."""
    return {
        row_key(node, device): _links_of(device, node.numa_nodes)
        for device in node.devices
        if device.kind is ViewKind.GPU
    }


def _links_of(device: Device, numa: Mapping[str, int]) -> GpuLinks:
    readings = device.readings
    address = device.pci_address or text_of(readings, "gpu_pci_address") or None
    width, widest = number_of(readings, "gpu_pcie_link_width"), number_of(readings, "gpu_pcie_link_width_max")
    states = _link_states(device.dimensions)
    nvlinks = _count(readings, "gpu_nvlinks", len(states) or None)
    known = [is_up for is_up in states.values() if is_up is not None]
    fabric = _fabric(readings)
    return GpuLinks(
        address=address,
        numa_node=numa.get(address) if address is not None else None,
        pcie=_pcie(readings),
        is_narrow=width is not None and widest is not None and width < widest,
        nvlinks=nvlinks,
        active=_count(readings, "gpu_nvlinks_active", sum(known) if known and len(known) == nvlinks else None),
        down=tuple(link for link, is_up in states.items() if is_up is False),
        ends=_ends(device),
        peers=_peers(device),
        fabric=fabric,
        is_healthy=_is_healthy(readings) if fabric else None,
    )


def _count(readings: Mapping[str, Reading], metric: str, otherwise: int | None) -> int | None:
    found = number_of(readings, metric)
    return otherwise if found is None else int(found)


def _pcie(readings: Mapping[str, Reading]) -> str:
    """Return the link and its maximum; the generation is lower while the GPU is idle."""
    links = []
    for suffix in ("", "_max"):
        generation, width = (number_of(readings, f"gpu_pcie_link_{part}{suffix}") for part in ("generation", "width"))
        known = [NOTHING if value is None else f"{value:g}" for value in (generation, width)]
        links.append("" if generation is None and width is None else "x".join(known))
    return "/".join(one or NOTHING for one in links) if any(links) else NOTHING


def _link_states(dimensions: Iterable[DimReading]) -> dict[str, bool | None]:
    """Return whether each link is up, in the order of their numbers; None is unknown."""
    found = {
        one.labels.get("link", ""): None if one.value is None else one.value == 1
        for one in dimensions
        if one.metric == "gpu_nvlink_up"
    }
    return dict(sorted(found.items(), key=lambda entry: (len(entry[0]), entry[0])))


def _ends(device: Device) -> dict[str, int]:
    found = {
        end: int(one.value)
        for one in device.dimensions
        if one.metric == "gpu_nvlink_peers"
        and (end := _ENDS.get(one.labels.get("peer", ""))) is not None
        and isinstance(one.value, int | float)
    }
    switched = number_of(device.readings, "gpu_nvswitch_links")  # of the slow lane: newer than the peers
    if switched is not None:
        found["NVSwitch"] = int(switched)
    return {end: found[end] for end in _ENDS.values() if found.get(end)}


def _peers(device: Device) -> dict[str, int]:
    found = {
        one.labels.get("peer_pci_address", ""): int(one.value)
        for one in device.dimensions
        if one.metric == "gpu_nvlink_gpu_links" and isinstance(one.value, int | float)
    }
    return dict(sorted(found.items()))


def _fabric(readings: Mapping[str, Reading]) -> tuple[str, ...]:
    """Return the facts about the fabric, the most important one first; none if the state is unknown."""
    state = text_of(readings, "gpu_fabric_state")
    status, health = text_of(readings, "gpu_fabric_status"), text_of(readings, "gpu_fabric_health_status")
    if not state:
        return ()
    clique = text_of(readings, "gpu_fabric_clique")
    facts = [state] if state != "completed" or not health else [health, state]
    facts += [status] if status not in ("", "SUCCESS") else []
    return (*facts, *([f"clique {clique}"] if clique else []))


def _is_healthy(readings: Mapping[str, Reading]) -> bool:
    return (
        text_of(readings, "gpu_fabric_state") == "completed"
        and text_of(readings, "gpu_fabric_status") in ("", "SUCCESS")
        and text_of(readings, "gpu_fabric_health_status") in ("", "healthy", "not_reported")
    )


def topology_head(width: int) -> Line:
    """Return the titles of the columns."""
    titles = (
        ("#", NUMBER),
        ("GPU", _title_width(width)),
        ("PCI address", ADDRESS),
        ("PCIe now/max", PCIE),
        ("NVLinks", LINKS),
        ("to", ENDS),
        ("fabric", None),
    )
    return joined([cell(name, size, "head") for name, size in titles])


def links_line(row: DeviceRow, links: GpuLinks, width: int) -> Line:
    """Return the line of a GPU."""
    ends = ", ".join(f"{count} {end}" for end, count in links.ends.items())
    fabric = ", ".join(links.fabric if width >= WIDE else links.fabric[:1])
    return joined(
        [
            cell(row.number, NUMBER),
            cell(row.title, _title_width(width)),
            cell(links.address or NOTHING, ADDRESS),
            cell(links.pcie, PCIE, "warn" if links.is_narrow else ""),
            cell(_nvlinks(links), LINKS, _nvlink_style(links)),
            cell(ends or NOTHING, ENDS),
            cell(fabric or NOTHING, style="" if links.is_healthy is None else "good" if links.is_healthy else "bad"),
        ]
    )


def _title_width(width: int) -> int:
    return WIDE_TITLE if width >= WIDE else TITLE


def _nvlinks(links: GpuLinks) -> str:
    if links.nvlinks is None and links.active is None:
        return NOTHING
    return "/".join(NOTHING if count is None else str(count) for count in (links.active, links.nvlinks))


def _nvlink_style(links: GpuLinks) -> Style:
    if links.nvlinks is None or links.active is None:
        return ""
    return "good" if links.active >= links.nvlinks else "warn" if links.active else "bad"


def down_line(links: GpuLinks) -> Line:
    """Return the line of the NVLinks that are down."""
    more = f", {len(links.down) - _MAX_DOWN} more" if len(links.down) > _MAX_DOWN else ""
    return (Span(" " * (NUMBER + 1)), cell(f"NVLinks down: {', '.join(links.down[:_MAX_DOWN])}{more}", style="bad"))


def peers_line(links: GpuLinks, width: int) -> Line:
    """Return the line of the GPUs that are linked directly, by PCI address: those that fit in a width."""
    most = max(1, (width - 2 * _PEER) // _PEER)
    texts = [f"{count} to {address}" for address, count in links.peers.items()]
    more = [f"{len(texts) - most} more"] if len(texts) > most else []
    return (Span(" " * (NUMBER + 1)), cell(f"linked {', '.join([*texts[:most], *more])}", style="dim"))


def part_line(row: DeviceRow) -> Line:
    """Return the line of a MIG device or vGPU instance."""
    vm = f"vm {row.vm or NOTHING}" if row.kind is ViewKind.VGPU else ""
    return joined([cell(f"└{row.number}", NUMBER), cell(row.title, WIDE_TITLE), cell(vm, style="dim")])


def numa_line(node: int | None) -> Line:
    """Return the heading of the GPUs of a NUMA node."""
    return (cell("NUMA node unknown" if node is None else f"NUMA node {node}", style="dim"),)


def slot_order(links: GpuLinks) -> tuple[bool, int, str]:
    """Sort key: by NUMA node, then PCI address; unknown ones come last."""
    return links.numa_node is None, links.numa_node or 0, links.address or "~"
