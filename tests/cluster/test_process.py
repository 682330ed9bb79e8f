"""Cluster collectors as real processes: two replicas that end in turn, a restarted API server, and a real hub."""

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.holders.kubernetes.lease import DURATION_SECONDS
from gpufleet.holders.kubernetes.resources import PODS
from tests.fakes.kube_api import FakeKubeApi
from tests.holders.kubernetes.conftest import CLUSTERS
from tests.support import kube
from tests.support.hub_state import prepare_state
from tests.support.kube import ClusterUnderTest, KubeServer
from tests.support.kube_objects import NODE_KEY, NOWHERE, POD_KEY, Object, gpu_node, gpu_pod
from tests.support.processes import Gpufleet, free_port, get_json
from tests.support.waiting import PATIENCE, wait_until_async


class Site:
    """Hub and collectors in their own processes."""

    def __init__(self, folder: Path, kubeconfig: Path, lease_namespace: str = "gpufleet") -> None:
        self.folder, self.kubeconfig, self.lease_namespace = folder, kubeconfig, lease_namespace
        self.hub_url = f"http://127.0.0.1:{free_port()}"
        self.stack = contextlib.ExitStack()
        self.urls: dict[str, str] = {}

    async def start_hub(self) -> Gpufleet:
        state = self.folder / "state"
        if not state.exists():
            prepare_state(state)
        arguments = ["hub", "--listen", self.hub_url.removeprefix("http://"), "--state", str(state)]
        environment = {"GPUFLEET_HUB_CLUSTERS": "prod-1"}
        hub = self.stack.enter_context(Gpufleet(arguments, self.folder / "hub.log", environment))
        await asyncio.to_thread(hub.wait_for, f"{self.hub_url}/readyz", 100)
        return hub

    async def start_collector(self, replica: str) -> Gpufleet:
        port = free_port()
        self.urls[replica] = f"http://127.0.0.1:{port}"
        arguments = [
            *("cluster-agent", "--cluster", "prod-1", "--replica", replica, "--hub", self.hub_url),
            *("--kubeconfig", str(self.kubeconfig), "--listen", f"127.0.0.1:{port}"),
            *("--state", str(self.folder / replica)),
        ]
        environment = {
            "GPUFLEET_CLUSTER_AGENT_LEASE__NAMESPACE": self.lease_namespace,
            "GPUFLEET_CLUSTER_AGENT_HUB__HEARTBEAT_SECONDS": "1",
        }
        collector = self.stack.enter_context(Gpufleet(arguments, self.folder / f"{replica}.log", environment))
        await asyncio.to_thread(collector.wait_for, f"{self.urls[replica]}/readyz")
        return collector

    async def wait_for(self, condition: Callable[[], object], what: str, seconds: float = 20) -> None:
        """Wait for a condition that is evaluated in a thread."""

        async def is_true() -> object:
            return await asyncio.to_thread(condition)

        await wait_until_async(is_true, what=what, seconds=seconds)

    def leads(self, replica: str) -> bool:
        return bool(get_json(f"{self.urls[replica]}/v1/snapshot")["status"]["is_leader"])

    def pods(self) -> dict[str, tuple[str, bool]]:
        """Return the pods that the hub knows: name to phase and whether it has ended."""
        statement = "SELECT name, phase, ended_at IS NOT NULL AS ended FROM fleet_pods"
        request = urllib.request.Request(
            f"{self.hub_url}/v1/query",
            data=json.dumps({"sql": statement}).encode(),
            method="POST",
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
            return {name: (phase, bool(ended)) for name, phase, ended in json.load(answer)["rows"]}

    def hub(self, path: str) -> Any:
        return get_json(self.hub_url + path)


class FakeSite(Site):
    """Site with an API server in this process."""

    def __init__(self, folder: Path, api: FakeKubeApi) -> None:
        super().__init__(folder, api.kubeconfig(folder))
        self.api = api


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[FakeSite]:
    async with FakeKubeApi() as api:
        api.put(NODE_KEY, gpu_node("gpu-1"))
        api.put(NODE_KEY, gpu_node("gpu-2"))
        site = FakeSite(tmp_path, api)
        with site.stack:
            yield site


async def test_replicas_that_end_in_turn_lose_nothing(site: FakeSite) -> None:
    site.api.put(POD_KEY, gpu_pod("first", node="gpu-1"))
    site.api.put(POD_KEY, gpu_pod("removed", node="gpu-1"))
    await site.start_hub()
    first = await site.start_collector("replica-1")
    await site.wait_for(lambda: site.leads("replica-1"), "the lease")
    second = await site.start_collector("replica-2")
    await site.wait_for(lambda: site.pods().keys() == {"first", "removed"}, "both pods at the hub")

    first.kill()
    site.api.delete(POD_KEY, "test", "removed")  # while no replica leads
    site.api.put(POD_KEY, gpu_pod("second", node="gpu-2"))
    expected = {"first": ("Running", False), "removed": ("Running", True), "second": ("Running", False)}
    await site.wait_for(lambda: site.pods() == expected, "the report of the second replica", DURATION_SECONDS + 20)
    assert site.leads("replica-2")

    await site.start_collector("replica-1")
    assert not site.leads("replica-1")
    site.api.put(POD_KEY, gpu_pod("second", node="gpu-2", phase="Failed"))
    assert await asyncio.to_thread(second.stop) == 0  # it gives the lease back
    await site.wait_for(lambda: site.leads("replica-1"), "the lease, given back", DURATION_SECONDS / 2)
    await site.wait_for(lambda: site.pods()["second"] == ("Failed", False), "the changed pod")
    senders = site.hub("/v1/senders")
    assert {one["sender"] for one in senders} == {"replica-1", "replica-2"}
    assert site.hub("/v1/fleet")["missing_batches"] == 0


@pytest.mark.parametrize("kind", [one for one in CLUSTERS if one != "fake"])
async def test_replicas_killed_in_turn_at_a_real_api_server_lose_nothing(
    kind: str, real_server: Callable[[], KubeServer], tmp_path: Path
) -> None:
    async with kube.tested_cluster(kind, tmp_path, real_server) as cluster:
        site = Site(tmp_path, cluster.kubeconfig, cluster.namespace)
        with site.stack:
            await cluster.create(PODS, _pod(cluster, "first"))
            await site.start_hub()
            collectors = {"replica-1": await site.start_collector("replica-1")}
            await site.wait_for(lambda: site.leads("replica-1"), "the lease")
            collectors["replica-2"] = await site.start_collector("replica-2")
            await site.wait_for(lambda: "first" in site.pods(), "the pod at the hub")
            pods = ["first"]
            for killed, other in (("replica-1", "replica-2"), ("replica-2", "replica-1")):
                collectors[killed].kill()
                await cluster.delete(PODS, pods[-1])  # while no replica leads
                pods.append(f"after-{killed}")
                await cluster.create(PODS, _pod(cluster, pods[-1]))
                expected = {name: ("Pending", name != pods[-1]) for name in pods}
                await site.wait_for(
                    lambda expected=expected: site.pods().items() >= expected.items(),  # type: ignore[misc]
                    f"the report of {other}",
                    DURATION_SECONDS + 20,
                )
                assert site.leads(other)
                if killed == "replica-1":
                    collectors[killed] = await site.start_collector(killed)
            assert site.hub("/v1/fleet")["missing_batches"] == 0


def _pod(cluster: ClusterUnderTest, name: str) -> Object:
    content = gpu_pod(name)
    content["metadata"]["namespace"] = cluster.namespace
    content["spec"]["nodeSelector"] = NOWHERE
    return {"apiVersion": "v1", "kind": "Pod", **content}


async def test_hub_expects_the_gpus_of_nodes_without_an_agent(site: FakeSite) -> None:
    await site.start_hub()
    await site.start_collector("replica-1")

    def expected_gpus() -> object:
        return site.hub("/v1/clusters/prod-1")["coverage"]["sources"].get("kubernetes")

    await site.wait_for(lambda: expected_gpus() == 16, "the expected GPUs")
    machines = {one["machine"]["name"]: one for one in site.hub("/v1/machines")["items"]}
    assert {(name, one["liveness"]["state"]) for name, one in machines.items()} == {
        ("gpu-1", "never_seen"),
        ("gpu-2", "never_seen"),
    }
    site.api.delete(NODE_KEY, "", "gpu-2")
    await site.wait_for(lambda: expected_gpus() == 8, "the removed node")


async def test_restarted_api_server_and_hub_lose_no_change(site: FakeSite) -> None:
    hub = await site.start_hub()
    await site.start_collector("replica-1")
    site.api.put(POD_KEY, gpu_pod("first", node="gpu-1"))
    await site.wait_for(lambda: "first" in site.pods(), "the pod")
    await site.api.stop()
    site.api.put(POD_KEY, gpu_pod("first", node="gpu-1", phase="Succeeded"))
    hub.kill()
    await site.api.start()
    await site.start_hub()
    expected = {"first": ("Succeeded", False)}
    await site.wait_for(lambda: site.pods() == expected, "the changed pod", 2 * DURATION_SECONDS)
