"""Scraped pages of a whole cluster: nodes are remembered once their samples are durable."""

from typing import Any

from gpufleet.hub.imports.federation import ClusterPuller, KubeStateReader
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.scrape_status import TargetStatuses
from gpufleet.model.absence import Absent
from gpufleet.model.errors import SpoolError
from gpufleet.model.status import Heartbeat
from tests.fakes.clock import FakeClock


class Page:
    """A received page."""

    def __init__(self, *nodes: str) -> None:
        line = 'kube_node_status_capacity{{node="{}",resource="nvidia_com_gpu",unit="integer"}} 8\n'
        self.body = "".join(map(line.format, nodes)).encode()

    def done(self) -> None:
        """Release nothing."""


class Cluster:
    """Nodes of a cluster, and a log that may be full."""

    def __init__(self) -> None:
        self.nodes: tuple[str, ...] = ("n1", "n2")
        self.is_full = False
        self.is_counted: dict[str, bool] = {}
        self.answered_at: list[int | None] = []

    async def fetch(self) -> Page:
        return Page(*self.nodes)

    async def receive(self, _cluster: str, _sender: str, read: Any, *, heartbeat: Heartbeat) -> ImportedRequest:
        self.answered_at.append(heartbeat.answered_at)
        written: ImportedRequest = read(None)
        if self.is_full:
            raise SpoolError("full")
        for machine, samples in written.machines.items():
            self.is_counted[machine.name] = not isinstance(samples[0].dims[0].value, Absent)
        return written


async def test_node_that_left_during_a_full_log_ends_on_the_next_page() -> None:
    cluster, clock = Cluster(), FakeClock()
    read = KubeStateReader(clock)
    target_status = TargetStatuses().open("local", "scrape/kube-state-metrics", "http://page")
    page = ClusterPuller(
        "local", "scrape/kube-state-metrics", cluster, read, cluster, clock, target_status,  # type: ignore[arg-type]
        interval_seconds=30, on_durable=read.commit,
    )  # fmt: skip
    await page.pull()
    assert cluster.is_counted == {"n1": True, "n2": True}
    cluster.nodes, cluster.is_full = ("n1",), True
    await page.pull()
    assert target_status.error
    cluster.is_full = False
    await page.pull()
    assert cluster.is_counted == {"n1": True, "n2": False}
    cluster.is_counted.clear()
    await page.pull()
    assert cluster.is_counted == {"n1": True}
    assert cluster.answered_at == [clock.now_ns()] * 4  # the hub creates the batches of a page, not its sender
