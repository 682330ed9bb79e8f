"""Memory and CPU of the cluster collector: 5,000 pods with GPUs on 500 nodes.

Method: a hub that accepts every batch in this process, the collector in its own. The API server is a real
kube-apiserver with etcd where its parts are beside the checkout, and otherwise that of the tests. Pods have 4 KiB and
nodes 16 KiB of annotations that the collector does not keep. Every 10 pods share a ReplicaSet and its Deployment. CPU
is measured for the first reports, for 20 s without changes, and for 20 s with 20 changed pods a second.
"""

import asyncio
import contextlib
import copy
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, resident_mib
from benchmarks.table import Table
from gpufleet.holders.kubernetes.resources import NODES, PODS
from gpufleet.model.kubernetes import ChainEnd
from tests.fakes.hub import FakeHub
from tests.support import peers
from tests.support.kube import PARTS, ClusterUnderTest, kube_server, tested_cluster
from tests.support.kube_objects import DEPLOYMENTS, OWNER_SPECS, REPLICA_SETS, controller, gpu_node, gpu_pod
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until_async

NODE_COUNT, POD_COUNT = 500, 5_000
PODS_PER_SET = 10
CHANGES_PER_SECOND = 20
SECONDS = 20
UNREAD_OF_POD, UNREAD_OF_NODE = 4 << 10, 16 << 10
CONCURRENT = 32
CHANGED_LABEL = "bench"

Object = dict[str, Any]


async def fill(cluster: ClusterUnderTest) -> list[Object]:
    """Create the objects; return the pods as stored."""
    slots = asyncio.Semaphore(CONCURRENT)

    async def limited(one: Coroutine[Any, Any, Object]) -> Object:
        async with slots:
            return await one

    async def node(number: int) -> Object:
        content = {"apiVersion": "v1", "kind": "Node", **gpu_node(f"{cluster.namespace}-{number}")}
        content["metadata"]["annotations"] = {"unread": "x" * UNREAD_OF_NODE}
        return await cluster.create(NODES, content)

    async def owner(number: int) -> Object:
        names = {"metadata": {"name": f"train-{number}"}, "apiVersion": "apps/v1"}
        deployment = await cluster.create(
            DEPLOYMENTS, {**names, "kind": "Deployment", "spec": OWNER_SPECS["Deployment"]}
        )
        metadata = {"name": f"train-{number}-a", "ownerReferences": [controller(deployment)]}
        content = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}
        return await cluster.create(REPLICA_SETS, {**content, "spec": OWNER_SPECS["ReplicaSet"]})

    async def pod(number: int, owners: list[Object]) -> Object:
        node_name = f"{cluster.namespace}-{number % NODE_COUNT}"
        content = gpu_pod(f"train-{number}", node=node_name, owner=owners[number // PODS_PER_SET])
        content["metadata"] |= {"namespace": cluster.namespace, "annotations": {"unread": "x" * UNREAD_OF_POD}}
        return await cluster.create(PODS, {"apiVersion": "v1", "kind": "Pod", **content})

    await asyncio.gather(*(limited(node(number)) for number in range(NODE_COUNT)))
    owners = await asyncio.gather(*(limited(owner(number)) for number in range(POD_COUNT // PODS_PER_SET)))
    return await asyncio.gather(*(limited(pod(number, owners)) for number in range(POD_COUNT)))


def received(hub: FakeHub) -> set[str]:
    """Return the UIDs of the pods that the hub has with their owners."""
    parts = [batch.cluster_part for batch in hub.taken if batch.cluster_part is not None]
    return {pod.uid for part in parts for pod in part.pods if pod.chain_end is ChainEnd.TOP}


async def change(cluster: ClusterUnderTest, pods: list[Object], seconds: float) -> None:
    """Change a label of pods for a time."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        began = time.monotonic()
        for _ in range(CHANGES_PER_SECOND // 10):
            changed = copy.deepcopy(pods[number % len(pods)])
            changed["metadata"].setdefault("labels", {})[CHANGED_LABEL] = str(number)
            pods[number % len(pods)] = await cluster.replace(PODS, changed)
            number += 1
        await asyncio.sleep(max(0.0, 0.1 - (time.monotonic() - began)))


@contextlib.asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[str, ClusterUnderTest]]:
    """Return a cluster and the kind of its API server."""
    etcd = peers.find("etcd")
    with contextlib.ExitStack() as stack:
        kind = "real" if etcd is not None and (PARTS / "kube-apiserver.zst").exists() else "fake"

        def start() -> Any:
            assert etcd is not None
            (folder / "kube").mkdir()
            return stack.enter_context(kube_server(folder / "kube", etcd))

        async with tested_cluster(kind, folder, start) as cluster:
            yield "kube-apiserver" if kind == "real" else "API server of the tests", cluster


async def measure(folder: Path) -> None:
    """Run and print."""
    async with api_server(folder) as (server, cluster), FakeHub.running() as hub:
        pods = await fill(cluster)
        arguments = [
            *("cluster-agent", "--cluster", "bench", "--hub", hub.url, "--state", str(folder / "state")),
            *("--kubeconfig", str(cluster.kubeconfig), "--listen", f"127.0.0.1:{free_port()}"),
        ]
        environment = {
            "GPUFLEET_CLUSTER_AGENT_LEASE__NAMESPACE": cluster.namespace,
            "GPUFLEET_CLUSTER_AGENT_COLLECT__POD_LABELS": CHANGED_LABEL,
        }
        name = f"collector of {POD_COUNT} pods on {NODE_COUNT} nodes, {server}"
        table = Table(name, "phase", "s", "CPU s", "CPU", "MiB", "batches")
        with Gpufleet(arguments, folder / "log", environment) as collector:
            pid = collector.process.pid
            began = time.monotonic()

            async def have_arrived() -> bool:
                return len(received(hub)) == POD_COUNT

            await wait_until_async(have_arrived, seconds=60, what="every pod")

            def row(phase: str, began: float, cpu: float, batches: int) -> None:
                seconds, used = time.monotonic() - began, cpu_seconds(pid) - cpu
                table.row(
                    *(phase, f"{seconds:.0f}", f"{used:.2f}", f"{100 * used / seconds:.1f} %"),
                    *(f"{resident_mib(pid):.0f}", str(len(hub.taken) - batches)),
                )

            row("until the hub has every pod with its owners", began, 0.0, 0)
            began, cpu, batches = time.monotonic(), cpu_seconds(pid), len(hub.taken)
            await asyncio.sleep(SECONDS)
            row("without changes", began, cpu, batches)
            began, cpu, batches = time.monotonic(), cpu_seconds(pid), len(hub.taken)
            await change(cluster, pods, SECONDS)
            row(f"{CHANGES_PER_SECOND} changed pods a second", began, cpu, batches)
        table.print()


def main() -> None:
    """Run in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
