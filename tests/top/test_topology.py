"""Topology page of `gpufleet top`."""

import datetime as dt

from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AnswerDevice, GpuRecord
from gpufleet.model.reading import DimReading, Provenance, Reading
from gpufleet.model.view import Side, ViewKind
from gpufleet.top.lines import line_text
from gpufleet.top.observation import ObservedNode, observe_fleet, observe_snapshot
from gpufleet.top.topology import GpuLinks, down_line, gpu_links, peers_line, slot_order
from tests.support.observed import gpu, host, linked, node_snapshot, nvlinks


def peer(address: str, count: int) -> DimReading:
    return DimReading(metric="gpu_nvlink_gpu_links", labels={"peer_pci_address": address}, value=count)


def links_of(found: dict[str, Reading], dimensions: tuple[DimReading, ...] = (), number: int = 0) -> GpuLinks:
    device = gpu(number, found, dimensions=dimensions)
    nodes = {one.address: one.numa_node for one in host().pci or () if one.numa_node is not None}
    node = ObservedNode(name="n", id="n", devices=(device,), numa_nodes=nodes)
    return gpu_links(node)[f"n/{device.key}"]


def test_whole_links_are_counted() -> None:
    links = links_of(linked(), nvlinks())
    assert (links.nvlinks, links.active, links.down, links.ends) == (18, 18, (), {"NVSwitch": 18})
    assert (links.pcie, links.is_narrow, links.numa_node) == ("5x16/5x16", False, 0)
    assert (links.fabric, links.is_healthy) == (("healthy", "completed"), True)


def test_absent_readings_are_unknown() -> None:
    links = links_of({"gpu_nvlinks": Reading(absent=Reason.NOT_SUPPORTED)}, number=3)
    assert (links.nvlinks, links.active, links.ends, links.fabric, links.is_healthy) == (None, None, {}, (), None)
    assert (links.pcie, links.numa_node) == ("-", None)


def test_totals_come_from_link_states_if_absent() -> None:
    links = links_of({}, nvlinks(10, 2))
    assert (links.nvlinks, links.active, links.down) == (18, 16, ("2", "10"))
    assert line_text(down_line(links)).split(": ")[1] == "2, 10"


def test_links_without_a_state_are_not_down() -> None:
    unread = DimReading(metric="gpu_nvlink_up", labels={"link": "5"}, absent=Reason.DRIVER_ERROR)
    links = links_of({}, (*nvlinks(2)[:5], unread))
    assert (links.nvlinks, links.active, links.down) == (6, None, ("2",))
    links = links_of({"gpu_nvlinks": Reading(value=18)}, nvlinks()[:17])
    assert (links.nvlinks, links.active, links.down) == (18, None, ())


def test_ends_are_listed_by_type() -> None:
    assert links_of(linked(active=14), nvlinks(peers=4)).ends == {"NVSwitch": 14, "GPU": 4}


def test_linked_gpus_are_listed_by_address() -> None:
    links = links_of(linked(active=18), (*nvlinks(peers=18), *(peer(f"0000:{slot:02x}:00.0", 2) for slot in range(9))))
    assert links.peers["0000:08:00.0"] == 2
    assert line_text(peers_line(links, 80)).split()[:4] == ["linked", "2", "to", "0000:00:00.0,"]
    assert line_text(peers_line(links, 80)).endswith("7 more")
    assert len(line_text(peers_line(links, 80))) <= 80
    assert "more" not in line_text(peers_line(links, 240))


def test_unhealthy_fabric_is_named_first() -> None:
    links = links_of(linked(gpu_fabric_health_status="unhealthy", gpu_fabric_clique="3"))
    assert (links.fabric, links.is_healthy) == (("unhealthy", "completed", "clique 3"), False)
    assert links_of(linked(gpu_fabric_state="in_progress")).is_healthy is False


def test_numa_node_of_a_hub_is_that_of_its_record() -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    device = AnswerDevice(
        id="c/m/gpu/GPU-1",
        machine="m",
        kind=ViewKind.GPU,
        side=Side.HOST,
        uuid="GPU-1",
        pci_address="0000:1b:00.0",
        source=Provenance.HOST_LOCAL_PROBE,
        readings={},
    )
    record = GpuRecord(
        cluster="c", node="n", device=device, numa_node=1, measured_at=at, received_at=at, age_seconds=0.0
    )
    (node,) = observe_fleet("http://hub", [record]).nodes
    assert [one.numa_node for one in gpu_links(node).values()] == [1]


def test_unknown_numa_nodes_come_last() -> None:
    node = observe_snapshot(node_snapshot()).nodes[0]
    ordered = sorted(gpu_links(node).values(), key=slot_order)
    assert [one.numa_node for one in ordered] == [0, 0, 1, None]
