"""Memory and CPU of the cluster collector: 5,000 pods with GPUs on 500 nodes.

Method: the API server of the tests and a hub that accepts every batch in this process, the collector in its own. Pods
have 4 KiB and nodes 16 KiB of fields that the collector does not read. Every 10 pods share a ReplicaSet and its
Deployment. CPU is measured for the first reports, for 60 s without changes, and for 60 s with 20 changed pods a second.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, resident_mib
from benchmarks.table import Table
from gpufleet.model.kubernetes import ChainEnd
from tests.fakes.hub import FakeHub
from tests.fakes.kube_api import FakeKubeApi
from tests.support.kube_objects import (
    DEPLOYMENTS,
    NODE_KEY,
    POD_KEY,
    REPLICA_SETS,
    controller,
    gpu_node,
    gpu_pod,
    key_of,
)
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until_async

NODES, PODS = 500, 5_000
PODS_PER_SET = 10
CHANGES_PER_SECOND = 20
SECONDS = 60
UNREAD_OF_POD, UNREAD_OF_NODE = 4 << 10, 16 << 10


def fill(api: FakeKubeApi) -> list[dict[str, Any]]:
    """Create the objects; return the pods."""
    for number in range(NODES):
        node = gpu_node(f"gpu-{number}")
        node["metadata"]["managedFields"] = [{"fieldsV1": "x" * UNREAD_OF_NODE}]
        api.put(NODE_KEY, node)
    pods = []
    for number in range(PODS):
        if number % PODS_PER_SET == 0:
            name = f"train-{number // PODS_PER_SET}"
            deployment = api.put(key_of(DEPLOYMENTS), {"metadata": {"name": name, "namespace": "test"}})
            reference = {"name": f"{name}-a", "namespace": "test", "ownerReferences": [controller(deployment)]}
            owner = api.put(key_of(REPLICA_SETS), {"metadata": reference})
        pod = gpu_pod(f"train-{number}", node=f"gpu-{number % NODES}", owner=owner)
        pod["metadata"]["managedFields"] = [{"fieldsV1": "x" * UNREAD_OF_POD}]
        pods.append(api.put(POD_KEY, pod))
    return pods


def received(hub: FakeHub) -> set[str]:
    """Return the UIDs of the pods that the hub has with their owners."""
    parts = [batch.cluster_part for batch in hub.taken if batch.cluster_part is not None]
    return {pod.uid for part in parts for pod in part.pods if pod.chain_end is ChainEnd.TOP}


async def change(api: FakeKubeApi, pods: list[dict[str, Any]], seconds: float) -> None:
    """Change pods for a time."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(CHANGES_PER_SECOND // 10):
            pod = pods[number % len(pods)]
            phase = "Failed" if pod["status"]["phase"] == "Running" else "Running"
            pod["status"] = {"phase": phase}
            api.put(POD_KEY, pod)
            number += 1
        await asyncio.sleep(0.1)


async def measure(folder: Path) -> None:
    """Run and print."""
    async with FakeKubeApi() as api, FakeHub.running() as hub:
        pods = fill(api)
        arguments = [
            *("cluster-agent", "--cluster", "bench", "--hub", hub.url, "--state", str(folder)),
            *("--kubeconfig", str(api.kubeconfig(folder)), "--listen", f"127.0.0.1:{free_port()}"),
        ]
        environment = {"GPUFLEET_CLUSTER_AGENT_LEASE__NAMESPACE": "gpufleet"}
        table = Table(f"collector of {PODS} pods on {NODES} nodes", "phase", "s", "CPU s", "CPU", "MiB", "batches")
        with Gpufleet(arguments, folder / "log", environment) as collector:
            pid = collector.process.pid
            began = time.monotonic()

            async def have_arrived() -> bool:
                return len(received(hub)) == PODS

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
            await change(api, pods, SECONDS)
            row(f"{CHANGES_PER_SECOND} changed pods a second", began, cpu, batches)
        table.print()


def main() -> None:
    """Run in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
