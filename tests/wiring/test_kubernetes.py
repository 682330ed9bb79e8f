"""Owners of the pods of a node: a kubelet, an API server and its real client, and the collector of the same cluster."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.agent.collect.holders import HolderCollector
from gpufleet.config.agent import ENV_PREFIX, AgentConfig
from gpufleet.config.cluster import CollectConfig
from gpufleet.config.kubernetes import KubernetesConfig
from gpufleet.config.load import resolve
from gpufleet.fleet.attribution.cluster_pods import complete_holding
from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.listing import list_objects
from gpufleet.holders.kubernetes.owners import OwnerWalk
from gpufleet.holders.kubernetes.parse.fields import MAX_VALUE
from gpufleet.holders.kubernetes.resources import PODS, ApiResource
from gpufleet.model.holdings import MAX_LABELS, Holder, HolderKind, Holding
from gpufleet.model.kubernetes import ClusterPod
from gpufleet.model.snapshot import Device
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.stored.kubernetes import ObjectKind
from gpufleet.model.view import Side, ViewKind
from gpufleet.runtime import SystemClock
from gpufleet.wiring.cluster import collected_resources
from gpufleet.wiring.holders import make_holders
from gpufleet.wiring.kubernetes import make_enrichment
from gpufleet.wiring.validation import check_agent
from tests.fakes.kube_api import ADMIN, FakeKubeApi, Object, Rule
from tests.fakes.kubelet import KUBELET, FakeContainer, FakeKubelet, FakePod, node_folder
from tests.holders.kubernetes.conftest import CLUSTERS
from tests.support import kube
from tests.support.kube import ClusterUnderTest, KubeServer
from tests.support.kube_objects import (
    DEPLOYMENTS,
    OWNER_SPECS,
    POD_KEY,
    REPLICA_SETS,
    controller,
    gpu_pod,
    key_of,
)
from tests.support.snapshots import holding
from tests.support.waiting import wait_until_async

NODE = "gpu-1"
GPUS = [
    Device(key=f"gpu/{uuid}", kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, readings={})
    for uuid in (f"GPU-7f5e7c15-0000-4000-8000-00000000000{number}" for number in (1, 2))
]
READ_PODS = Rule("", "pods", ("list", "watch"))
READ_OWNERS = (Rule("apps", "replicasets", ("get",)), Rule("apps", "deployments", ("get",)))


class Node:
    """A kubelet with a pod of a Deployment, and the API server of its cluster.

    Attributes:
        pod: the pod as the API server has it.
    """

    def __init__(self, folder: Path, api: FakeKubeApi, kubelet: FakeKubelet) -> None:
        self.folder, self.api, self.kubelet = folder, api, kubelet
        deployment = api.put(key_of(DEPLOYMENTS), {"metadata": {"name": "web", "namespace": "test"}})
        replica_set = {"metadata": {"name": "web-1", "namespace": "test", "ownerReferences": [controller(deployment)]}}
        self.replica_set = api.put(key_of(REPLICA_SETS), replica_set)
        self.pod = self.put("web-1-a", "uid-a", {"app": "web", "kueue.x-k8s.io/queue-name": "research", "secret": "x"})
        api.put(POD_KEY, gpu_pod("elsewhere", node="gpu-2", owner=self.replica_set))
        api.put(POD_KEY, gpu_pod("idle", node=NODE, owner=self.replica_set))
        self.place("web-1-a", "uid-a", GPUS[0])

    def put(self, name: str, uid: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> Object:
        """Store a pod of the Deployment on this node."""
        pod = gpu_pod(name, node=NODE, owner=self.replica_set)
        pod["metadata"] |= {"uid": uid, "labels": labels, "annotations": annotations or {}}
        return self.api.put(POD_KEY, pod)

    def place(self, name: str, uid: str, gpu: Device) -> None:
        """Give a GPU to a pod."""
        container = FakeContainer("main", devices={"nvidia.com/gpu": (gpu.uuid or "",)})
        self.kubelet.place(FakePod("test", name, uid, (container,)))

    def config(self, token: str = ADMIN, **kubernetes: Any) -> AgentConfig:
        root = self.kubelet.root
        kubelet = {
            "folder": str(root / KUBELET),
            "pod_logs": str(root / "var/log/pods"),
            "container_logs": str(root / "var/log/containers"),
        }
        others = {name: {"enabled": False} for name in ("slurm", "libvirt", "processes")}
        return msgspec.convert(
            {
                "state": str(self.folder / "state"),
                "holders": {"kubelet": kubelet, **others},
                "kubernetes": {
                    "enrich": True,
                    "kubeconfig": str(self.api.kubeconfig(self.folder, token)),
                    "timeout_seconds": 5,
                    **kubernetes,
                },
            },
            AgentConfig,
        )

    async def read(self, token: str = ADMIN, *, node: str = NODE, **kubernetes: Any) -> HolderCollector:
        """Return the holders of one round, completed."""
        holders = make_holders(self.config(token, **kubernetes), SystemClock(), saves=False)
        assert holders is not None
        await holders.round(GPUS)
        await holders.settle(node)
        await holders.close()
        return holders


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with node_folder() as root, FakeKubelet(root) as kubelet:
        yield kubelet


@pytest.fixture
async def node(tmp_path: Path, kubelet: FakeKubelet) -> AsyncIterator[Node]:
    async with FakeKubeApi() as api:
        yield Node(tmp_path, api, kubelet)


def held(holders: HolderCollector, gpu: int = 0) -> Holding:
    return holders.devices[GPUS[gpu].key].holdings[0]


def names(holder: Holder) -> list[str]:
    return [f"{owner.kind} {owner.name}" for owner in holder.owners]


async def test_pod_has_owners_labels_and_queue(node: Node) -> None:
    holders = await node.read()
    holder = held(holders).holder
    assert names(holder) == ["ReplicaSet web-1", "Deployment web"]
    assert (holder.id, holder.queue) == ("uid-a", "research")
    assert holder.labels == {"app": "web", "kueue.x-k8s.io/queue-name": "research"}
    assert holders.capabilities == {"holders_kubelet": "available", "holders_kubernetes": "available"}


async def test_only_metadata_of_own_pods_and_their_owners_is_requested(node: Node) -> None:
    await node.read()
    assert {method for method, _, _ in node.api.requests} == {"GET"}
    pods = [query for path, query in node.api.queries if path == PODS.path()]
    assert pods
    assert {query["fieldSelector"] for query in pods} == {f"spec.nodeName={NODE}"}
    bodies = {path: accept for _, path, accept in node.api.requests if path != "/apis/apps/v1"}
    assert all("PartialObjectMetadata" in accept for accept in bodies.values())
    owners = "/apis/apps/v1/namespaces/test"
    assert bodies.keys() == {PODS.path(), f"{owners}/replicasets/web-1", f"{owners}/deployments/web"}


async def test_configured_labels_and_annotations_are_added(node: Node) -> None:
    node.put("web-1-a", "uid-a", {"app": "web", "team/a": "x", "team/b": "y", "other": "z"}, {"note": "n", "more": "m"})
    holder = held(await node.read(pod_labels=["team/*"], pod_annotations=["note"])).holder
    assert holder.labels == {"app": "web", "team/a": "x", "team/b": "y"}
    assert holder.annotations == {"note": "n"}


async def test_hostile_labels_are_bounded(node: Node) -> None:
    labels = {f"x/{number:03}": "v" * 5000 for number in range(2 * MAX_LABELS)} | {"app": "\x1b[31m\nweb\0"}
    node.put("web-1-a", "uid-a", labels)
    holder = held(await node.read(pod_labels=["x/*"])).holder
    assert len(holder.labels) == MAX_LABELS
    assert max(map(len, holder.labels.values())) == MAX_VALUE
    assert holder.labels["app"] == "[31mweb"


@pytest.mark.parametrize(
    ("rules", "state", "owners"),
    [
        ((READ_PODS, *READ_OWNERS), "available", ["ReplicaSet web-1", "Deployment web"]),
        ((READ_PODS, READ_OWNERS[0]), "partial", ["ReplicaSet web-1", "Deployment web"]),
        ((READ_PODS,), "partial", ["ReplicaSet web-1"]),
        ((), "not_permitted", []),
    ],
)
async def test_each_missing_permission_costs_its_part(
    node: Node, rules: tuple[Rule, ...], state: str, owners: list[str]
) -> None:
    node.api.tokens["agent"] = rules
    holders = await node.read("agent")
    assert holders.capabilities["holders_kubernetes"].partition(":")[0] == state
    assert names(held(holders).holder) == owners
    assert held(holders).holder.name == "web-1-a"


async def test_expired_token_and_missing_server_cost_the_owners_only(node: Node) -> None:
    expired = await node.read("expired")
    await node.api.stop()
    unreachable = await node.read()
    for holders in (expired, unreachable):
        assert holders.capabilities["holders_kubernetes"].startswith("reader_failed")
        assert (held(holders).holder.name, held(holders).holder.owners) == ("web-1-a", ())
    assert "401" in expired.capabilities["holders_kubernetes"]


async def test_without_name_of_the_node_nothing_is_requested(node: Node) -> None:
    holders = await node.read(node="")
    assert holders.capabilities["holders_kubernetes"].startswith("no_data")
    assert node.api.requests == []


async def test_node_and_collector_of_the_cluster_agree(node: Node) -> None:
    """The hub joins the same names, whether the node has sent owners or not."""
    enriched = held(await node.read())
    bare = msgspec.structs.replace(
        enriched, holder=msgspec.structs.replace(enriched.holder, owners=(), labels={}, queue="")
    )
    pod = await collected_pod(node)

    def joined(holding: Holding) -> StoredHolding:
        return complete_holding(StoredHolding(cluster="c", machine="m", holding=holding, reported_at=1), pod, None)

    assert joined(enriched) == joined(bare)
    assert joined(enriched).holding == enriched


async def collected_pod(node: Node) -> ClusterPod:
    """Return the pod as the collector sends it."""
    connection = ApiConnection(ApiAccess(kubeconfig=str(node.api.kubeconfig(node.folder))))
    resource, convert = collected_resources(CollectConfig())[ObjectKind.POD]
    listed = await list_objects(connection, resource, convert, max_objects=10)
    pod = await OwnerWalk(connection, SystemClock()).resolve(listed.records["uid-a"])
    await connection.close()
    return pod


@pytest.fixture(params=CLUSTERS)
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, real_server: Callable[[], KubeServer]
) -> AsyncIterator[ClusterUnderTest]:
    async with kube.tested_cluster(request.param, tmp_path, real_server) as started:
        yield started


async def create(
    cluster: ClusterUnderTest, resource: ApiResource, kind: str, name: str, owner: Object | None = None
) -> Object:
    """Create an owner; return it as the API server reports it."""
    head = {"apiVersion": f"{resource.group}/{resource.version}", "kind": kind}
    metadata = {"name": name} | ({"ownerReferences": [controller(owner)]} if owner is not None else {})
    return {**await cluster.create(resource, {**head, "metadata": metadata, "spec": OWNER_SPECS[kind]}), **head}


async def test_pods_of_the_node_are_followed_with_the_documented_permissions(cluster: ClusterUnderTest) -> None:
    deployment = await create(cluster, DEPLOYMENTS, "Deployment", "web")
    owner = await create(cluster, REPLICA_SETS, "ReplicaSet", "web-1", deployment)
    pods = []
    for name, node_name in (("here", NODE), ("elsewhere", "gpu-2")):
        pod = {"apiVersion": "v1", "kind": "Pod", **gpu_pod(name, node=node_name, owner=owner)}
        pod["metadata"]["namespace"] = cluster.namespace
        pods.append(await cluster.create(PODS, pod))
    token = cluster.folder / "agent.token"
    token.write_text(await cluster.token([READ_PODS, *READ_OWNERS]))
    settings = KubernetesConfig(enrich=True, kubeconfig=str(cluster.user(token)), pod_labels=("team",))
    enrichment = make_enrichment(settings, SystemClock())
    bare = [holding(Holder(kind=HolderKind.POD, id=pod["metadata"]["uid"])) for pod in pods]

    def holders() -> list[Holder]:
        enrichment.update(bare)
        return [enrichment.complete(one).holder for one in bare]

    async def has_owners() -> bool:
        return names(holders()[0]) == ["ReplicaSet web-1", "Deployment web"]

    async def has_label() -> bool:
        return holders()[0].labels.get("team") == "ml"

    task = asyncio.create_task(enrichment.run(lambda: NODE))
    try:
        await wait_until_async(has_owners, what="the owners of the pod")
        pods[0]["metadata"]["labels"] = {"team": "ml"}
        await cluster.replace(PODS, pods[0])
        await wait_until_async(has_label, what="the label of the pod")
        assert names(holders()[1]) == []
        assert enrichment.capability == "available"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_disabled_enrichment_loads_no_client() -> None:
    script = (
        "import sys, gpufleet.wiring.agent, gpufleet.wiring.snapshot\n"
        "from gpufleet.config.agent import AgentConfig\n"
        "from gpufleet.runtime import SystemClock\n"
        "from gpufleet.wiring.holders import make_holders\n"
        "make_holders(AgentConfig(), SystemClock(), saves=False)\n"
        "print(sorted({'grpc', 'lightkube', 'httpx2', 'gpufleet.wiring.kubernetes'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_kubeconfig_is_found_by_validate(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"state = '{tmp_path}/state'\n[kubernetes]\nenrich = true\nkubeconfig = '{tmp_path}/none'\n")
    resolved = resolve(AgentConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})
    assert [error.key for error in check_agent(resolved, daemon=False)] == ["kubernetes.kubeconfig"]
