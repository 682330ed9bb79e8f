"""A page of a whole cluster: what it said is remembered once that is durable."""

from typing import Any

from gpufleet.hub.imports.federation import ClusterPage, KubernetesPage
from gpufleet.hub.imports.request import Written
from gpufleet.hub.imports.scrape_status import Standings
from gpufleet.model.absence import Absent
from gpufleet.model.errors import SpoolError
from tests.fakes.clock import FakeClock


class Page:
    """A page that came."""

    def __init__(self, *nodes: str) -> None:
        line = 'kube_node_status_capacity{{node="{}",resource="nvidia_com_gpu",unit="integer"}} 8\n'
        self.body = "".join(map(line.format, nodes)).encode()

    def done(self) -> None:
        """Let go of it."""


class Cluster:
    """Nodes, and a log that may be full."""

    def __init__(self) -> None:
        self.nodes: tuple[str, ...] = ("n1", "n2")
        self.is_full = False
        self.told: dict[str, bool] = {}

    async def fetch(self) -> Page:
        return Page(*self.nodes)

    async def take(self, _cluster: str, _sender: str, read: Any, *, beat: object) -> Written:
        written: Written = read(None)
        if self.is_full:
            raise SpoolError("full")
        for machine, samples in written.machines.items():
            self.told[machine.name] = not isinstance(samples[0].dims[0].value, Absent)
        return written


async def test_a_node_that_left_while_the_log_was_full_has_ended_with_the_next_page() -> None:
    cluster, clock = Cluster(), FakeClock()
    read = KubernetesPage(clock)
    standing = Standings().open("local", "scrape/kube-state-metrics", "http://page")
    page = ClusterPage(
        "local", "scrape/kube-state-metrics", cluster, read, cluster, clock, standing,  # type: ignore[arg-type]
        interval_seconds=30, taken=read.taken,
    )  # fmt: skip
    await page.ask()
    assert cluster.told == {"n1": True, "n2": True}
    cluster.nodes, cluster.is_full = ("n1",), True
    await page.ask()
    assert standing.error
    cluster.is_full = False
    await page.ask()
    assert cluster.told == {"n1": True, "n2": False}
    cluster.told.clear()
    await page.ask()
    assert cluster.told == {"n1": True}
