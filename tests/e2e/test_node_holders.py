"""Holders on a node: a real agent with a fake driver and kubelet, and joins of its metrics by a real Prometheus."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpufleet.exporters.prometheus import PrometheusExporter
from tests.fakes.kubelet import FakeContainer, FakeKubelet, FakePod, holders_config, node_folder
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.command import gpufleet
from tests.support.exporters import serving
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.snapshots import held_snapshot
from tests.support.tsdb import prometheus
from tests.support.waiting import wait_until

CONFIG = """
node = "node-1"

[lanes]
fast = 1.0
slow = 1.0
static = 5.0

{holders}
"""
GPU, OTHER = 6, 7
HOUR = 3600


class Node:
    """A kubelet and an agent on one node."""

    def __init__(self, folder: Path, kubelet: FakeKubelet) -> None:
        self.kubelet = kubelet
        self.url = f"http://127.0.0.1:{free_port()}"
        config = folder / "agent.toml"
        config.write_text(CONFIG.format(holders=holders_config(kubelet.root)))
        driver = FakeNvml(folder, Scenario.healthy(8))
        self.agent = Gpufleet(
            [
                *("agent", "--config", str(config), "--state", str(folder / "state")),
                *("--listen", self.url.removeprefix("http://")),
            ],
            folder / "agent.log",
            driver.environment,
        )

    def device(self, index: int) -> Any:
        return next(one for one in get_json(f"{self.url}/v1/snapshot")["devices"] if one.get("index") == index)

    def holders(self, index: int) -> Any:
        """Return the holders of a GPU; empty before the first round."""
        return self.device(index).get("holders", {})

    def verdicts(self, index: int) -> list[str]:
        return [one["verdict"] for one in self.holders(index).get("holdings", [])]

    def is_free(self, index: int) -> bool:
        return bool(self.holders(index).get("state") == "free")

    def place(self, name: str, index: int) -> FakePod:
        """Add a pod with a GPU."""
        container = FakeContainer("cuda", devices={"nvidia.com/gpu": (self.device(index)["uuid"],)})
        pod = FakePod("ml", name, f"uid-{name}", (container,))
        self.kubelet.place(pod)
        return pod

    def series(self, family: str) -> list[dict[str, str]]:
        """Return the labels of each series of a family."""
        page = get_text(f"{self.url}/metrics")
        return [
            dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in page.splitlines() if line.startswith(f"{family}{{")
        ]


def age(kubelet: FakeKubelet) -> None:
    """Make a kubelet look as if it had run for an hour. Directly after its start, it can lack pods."""
    at = kubelet.socket.stat().st_mtime - HOUR
    os.utime(kubelet.socket, (at, at))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with node_folder() as root, FakeKubelet(root) as kubelet:
        age(kubelet)
        running = Node(tmp_path, kubelet)
        with running.agent as agent:
            agent.wait_for(f"{running.url}/readyz")
            yield running


def test_pod_is_shown_kept_over_a_kubelet_restart_and_removed(node: Node) -> None:
    pod = node.place("train-0", GPU)
    wait_until(lambda: node.verdicts(GPU) == ["declared_only"], what="the pod as the holder")
    before = node.holders(GPU)["holdings"][0]
    assert (before["holder"]["name"], before["container"]) == ("train-0", "cuda")
    assert node.is_free(OTHER)

    (info,) = node.series("gpufleet_gpu_holder_info")
    assert (info["namespace"], info["pod"], info["container"]) == ("ml", "train-0", "cuda")
    assert info["uuid"] == node.device(GPU)["uuid"]
    titles, row = [line.split("\t") for line in gpufleet("who", info["uuid"], "--agent", node.url).stdout.splitlines()]
    assert {"gpu": str(GPU), "holder": "ml/train-0", "verdict": "declared_only"}.items() <= dict(
        zip(titles, row, strict=True)
    ).items()

    node.kubelet.restart([b""] * 3)
    wait_until(lambda: node.verdicts(GPU) == ["unknown"], what="the restarted kubelet to lack the pod")
    assert node.holders(OTHER)["state"] == "unknown"
    wait_until(lambda: node.verdicts(GPU) == ["declared_only"], what="the kubelet to list the pod again")
    assert node.holders(GPU)["holdings"][0]["since"] == before["since"]

    age(node.kubelet)
    node.kubelet.remove(pod)
    wait_until(lambda: node.is_free(GPU), what="the GPU to be free")
    assert node.series("gpufleet_gpu_holder_info") == []
    assert "ml/train-0" not in gpufleet("who", "--agent", node.url).stdout


@pytest.mark.system
def test_documented_joins_have_a_result(peer: Callable[[str], Path], tmp_path: Path) -> None:
    """The page has a device with two holders, and one that no driver reads."""
    text = (Path(__file__).parents[2] / "docs" / "holders.md").read_text(encoding="utf-8")
    queries = re.findall(r"^```promql\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(queries) == 4
    page = PrometheusExporter().render(held_snapshot())
    with serving(page) as (_, url), prometheus(peer("prometheus"), tmp_path / "p", urlsplit(url).netloc) as server:
        wait_until(lambda: server.query("gpufleet_gpu_holder_info"), what="a scrape")
        assert [query for query in queries if not server.query(query)] == []
