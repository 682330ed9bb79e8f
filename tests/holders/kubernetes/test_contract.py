"""Contract of the client with an API server: the fake one, a real one, or the cluster of GPUFLEET_TEST_KUBECONFIG.

Owners are created by hand. The suite holds with and without controllers of workloads, which create and delete pods at
any time. A given cluster is changed only in a namespace of its own, and by cluster roles and CustomResourceDefinitions
that are deleted at the end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.identity import ApiIdentity
from gpufleet.holders.kubernetes.lease import DURATION_SECONDS, RENEW_SECONDS, LeaderElection
from gpufleet.holders.kubernetes.listing import list_objects
from gpufleet.holders.kubernetes.mirror import ResourceMirror
from gpufleet.holders.kubernetes.owners import OwnerWalk
from gpufleet.holders.kubernetes.parse.dynamic_resources import parse_claim, parse_slice
from gpufleet.holders.kubernetes.parse.pods import PodSelection, parse_pod
from gpufleet.holders.kubernetes.parse.virtual_machines import parse_vmi
from gpufleet.holders.kubernetes.resources import (
    LEASES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VIRTUAL_MACHINE_INSTANCES,
    ApiResource,
)
from gpufleet.model.errors import KubernetesApiError
from gpufleet.model.kubernetes import ChainEnd, ClusterPod, CopyState
from gpufleet.runtime import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import Object, Rule
from tests.holders.kubernetes.conftest import CLUSTERS
from tests.holders.kubevirt.objects import A10, CID, vmi_object
from tests.support import kube
from tests.support.kube import ClusterUnderTest, KubeCluster, KubeServer
from tests.support.kube_objects import (
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    JOBS,
    NOWHERE,
    OWNER_SPECS,
    REPLICA_SETS,
    SELECTOR,
    STATEFUL_SETS,
    TEMPLATE,
    definition,
)
from tests.support.waiting import wait_until_async

Record = TypeVar("Record")

CONFIG_MAPS = ApiResource("", "v1", "configmaps")
READ = ("get", "list", "watch")


@pytest.fixture(params=["controlled" if one == "fake" else one for one in CLUSTERS])
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, real_server: Callable[[], KubeServer]
) -> AsyncIterator[ClusterUnderTest]:
    async with kube.tested_cluster(request.param, tmp_path, real_server) as started:
        yield started


class NamedMap(msgspec.Struct, frozen=True):
    name: str
    data: dict[str, str]


class _MapMetadata(msgspec.Struct):
    name: str


class _Map(msgspec.Struct):
    metadata: _MapMetadata
    data: dict[str, str] | None = None


def to_map(data: bytes | msgspec.Raw) -> NamedMap | None:
    found = msgspec.json.decode(data, type=_Map)
    return NamedMap(found.metadata.name, found.data or {}) if found.metadata.name.startswith("m") else None


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def replica_set(name: str) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE},
    }


async def brief_sleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.05))


@contextlib.asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[ApiConnection]:
    connection = ApiConnection(ApiAccess(kubeconfig=str(kubeconfig)))
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def running(mirror: ResourceMirror[Any]) -> AsyncIterator[ResourceMirror[Any]]:
    task = asyncio.create_task(mirror.run())
    try:
        yield mirror
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def mirror_of(
    connection: ApiConnection, cluster: ClusterUnderTest, resource: ApiResource = CONFIG_MAPS, **options: Any
) -> ResourceMirror[NamedMap]:
    options = {"namespace": cluster.namespace, "sleep": brief_sleep, "jitter": lambda: 0.0, **options}
    return ResourceMirror(connection, resource, to_map, SystemClock(), **options)


async def wait_for_names(mirror: ResourceMirror[NamedMap], names: Sequence[str]) -> None:
    async def equal() -> bool:
        return sorted(one.name for one in mirror.records.values()) == sorted(names)

    await wait_until_async(equal, what=f"{names} in the copy, which has {list(mirror.records.values())}")


async def wait_for_state(mirror: ResourceMirror[Any], state: CopyState) -> None:
    async def reached() -> bool:
        return mirror.status.state is state

    await wait_until_async(reached, what=f"{state}, but {mirror.status}")


async def user_connection(cluster: ClusterUnderTest, rules: Sequence[Rule], name: str = "user") -> Path:
    file = cluster.folder / f"{name}.token"
    file.write_text(await cluster.token(rules))
    return cluster.user(file)


async def test_list_reads_every_page(cluster: ClusterUnderTest) -> None:
    names = [f"m{n:02}" for n in range(11)]
    for name in names:
        await cluster.create(CONFIG_MAPS, config_map(name, key=name))
    async with connected(cluster.kubeconfig) as api:
        listed = await list_objects(
            api, CONFIG_MAPS, to_map, namespace=cluster.namespace, max_objects=100, page_objects=4
        )
    assert sorted(one.name for one in listed.records.values()) == names
    assert listed.is_complete
    assert listed.version


async def test_list_stops_at_the_limit_of_objects(cluster: ClusterUnderTest) -> None:
    for n in range(5):
        await cluster.create(CONFIG_MAPS, config_map(f"m{n}"))
    async with connected(cluster.kubeconfig) as api:
        listed = await list_objects(
            api, CONFIG_MAPS, to_map, namespace=cluster.namespace, max_objects=3, page_objects=2
        )
    assert len(listed.records) == 3
    assert not listed.is_complete


async def test_list_begins_again_when_its_pages_expire(cluster: ClusterUnderTest) -> None:
    for n in range(6):
        await cluster.create(REPLICA_SETS, replica_set(f"m{n}"))
    compactions = [cluster.compact]

    def compacting(data: bytes | msgspec.Raw) -> NamedMap | None:
        if compactions:
            compactions.pop()()
        return to_map(data)

    async with connected(cluster.kubeconfig) as api:
        listed = await list_objects(
            api, REPLICA_SETS, compacting, namespace=cluster.namespace, max_objects=100, page_objects=2
        )
    assert sorted(one.name for one in listed.records.values()) == [f"m{n}" for n in range(6)]
    assert not compactions


async def test_mirror_follows_changes(cluster: ClusterUnderTest) -> None:
    await cluster.create(CONFIG_MAPS, config_map("m1", key="1"))
    await cluster.create(CONFIG_MAPS, config_map("other"))
    async with connected(cluster.kubeconfig) as api, running(mirror_of(api, cluster)) as mirror:
        await wait_for_names(mirror, ["m1"])
        assert [one.name for one in mirror.take_changes().added] == ["m1"]
        await cluster.create(CONFIG_MAPS, config_map("m2"))
        await cluster.replace(CONFIG_MAPS, config_map("m1", key="2"))
        await cluster.create(CONFIG_MAPS, config_map("m3"))
        await wait_for_names(mirror, ["m1", "m2", "m3"])
        changes = mirror.take_changes()
        assert sorted(one.name for one in changes.added) == ["m2", "m3"]
        assert [(old.data["key"], new.data["key"]) for old, new in changes.changed] == [("1", "2")]
        await cluster.delete(CONFIG_MAPS, "m1")
        await wait_for_names(mirror, ["m2", "m3"])
        assert [one.name for one in mirror.take_changes().removed] == ["m1"]
        assert mirror.status.state is CopyState.SYNCED


async def test_mirror_of_metadata_receives_no_bodies(cluster: ClusterUnderTest) -> None:
    await cluster.create(CONFIG_MAPS, config_map("m1", key="1"))
    async with connected(cluster.kubeconfig) as api, running(mirror_of(api, cluster, metadata_only=True)) as mirror:
        await wait_for_names(mirror, ["m1"])
        await cluster.create(CONFIG_MAPS, config_map("m2", key="2"))
        await wait_for_names(mirror, ["m1", "m2"])
        assert [one.data for one in mirror.records.values()] == [{}, {}]


async def test_mirror_lists_again_after_a_compaction(cluster: ClusterUnderTest) -> None:
    await cluster.create(REPLICA_SETS, replica_set("m1"))
    async with connected(cluster.kubeconfig) as api:
        mirror = mirror_of(api, cluster, REPLICA_SETS)
        async with running(mirror):
            await wait_for_names(mirror, ["m1"])
        await cluster.delete(REPLICA_SETS, "m1")
        await cluster.create(REPLICA_SETS, replica_set("m2"))
        cluster.compact()
        async with running(mirror):
            await wait_for_names(mirror, ["m2"])
            await cluster.create(REPLICA_SETS, replica_set("m3"))
            await wait_for_names(mirror, ["m2", "m3"])
        assert [one.name for one in mirror.take_changes().added] == ["m2", "m3"]


class OldWatchConnection(ApiConnection):
    """Connection whose first watch begins at the first version of the cluster.

    Attributes:
        error: how that watch ended, or None.
    """

    error: KubernetesApiError | None = None
    _has_watched = False

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str, query: Mapping[str, str], *, accept: str, idle_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        is_first, self._has_watched = not self._has_watched, True
        query = {**query, "resourceVersion": "1"} if is_first else query
        try:
            async with super().watch(path, query, accept=accept, idle_seconds=idle_seconds) as lines:
                yield lines
        except KubernetesApiError as error:
            self.error = error if is_first else self.error
            raise


async def test_mirror_lists_again_after_an_expired_watch(cluster: ClusterUnderTest) -> None:
    """The watch cache of a new resource begins with the resource, so that earlier versions are expired."""
    things = ApiResource("expired.test.gpufleet.dev", "v1", "things")
    await cluster.create(DEFINITIONS, definition(things, "Thing"))
    thing: Object = {"apiVersion": "expired.test.gpufleet.dev/v1", "kind": "Thing"}
    await cluster.create(things, {**thing, "metadata": {"name": "m1"}})
    api = OldWatchConnection(ApiAccess(kubeconfig=str(cluster.kubeconfig)))
    try:
        async with running(mirror_of(api, cluster, things)) as mirror:
            await wait_for_names(mirror, ["m1"])
            await cluster.create(things, {**thing, "metadata": {"name": "m2"}})
            await wait_for_names(mirror, ["m1", "m2"])
    finally:
        await api.close()
    if api.error is None and "given" in CLUSTERS:
        pytest.skip("without a watch cache, the cluster expires versions only by a compaction of etcd")
    assert api.error is not None
    assert api.error.status == 410


async def test_mirror_survives_a_restart_of_the_api_server(cluster: ClusterUnderTest) -> None:
    await cluster.create(CONFIG_MAPS, config_map("m1"))
    async with connected(cluster.kubeconfig) as api, running(mirror_of(api, cluster)) as mirror:
        await wait_for_names(mirror, ["m1"])
        await cluster.restart()
        await cluster.create(CONFIG_MAPS, config_map("m2"))
        await wait_for_names(mirror, ["m1", "m2"])
        await wait_for_state(mirror, CopyState.SYNCED)


async def test_forbidden_resource_leaves_the_others_current(cluster: ClusterUnderTest) -> None:
    await cluster.create(CONFIG_MAPS, config_map("m1"))
    await cluster.create(REPLICA_SETS, replica_set("m2"))
    user = await user_connection(cluster, [Rule("", "configmaps", ("list", "watch"))])
    async with connected(user) as api:
        forbidden = mirror_of(api, cluster, REPLICA_SETS)
        async with running(mirror_of(api, cluster)) as permitted, running(forbidden):
            await wait_for_names(permitted, ["m1"])
            await wait_for_state(forbidden, CopyState.FORBIDDEN)
            await cluster.create(CONFIG_MAPS, config_map("m3"))
            await wait_for_names(permitted, ["m1", "m3"])
            assert not forbidden.records


async def test_watch_without_permission_is_forbidden(cluster: ClusterUnderTest) -> None:
    await cluster.create(CONFIG_MAPS, config_map("m1"))
    user = await user_connection(cluster, [Rule("", "configmaps", ("list",))])
    async with connected(user) as api, running(mirror_of(api, cluster)) as mirror:
        await wait_for_state(mirror, CopyState.FORBIDDEN)
        await wait_for_names(mirror, ["m1"])


async def test_resource_that_is_not_served(cluster: ClusterUnderTest) -> None:
    absent = ApiResource("absent.example.com", "v1", "things")
    async with connected(cluster.kubeconfig) as api, running(mirror_of(api, cluster, absent)) as mirror:
        await wait_for_state(mirror, CopyState.NOT_SERVED)


async def test_new_token_is_read_from_the_token_file(cluster: ClusterUnderTest) -> None:
    await cluster.create(CONFIG_MAPS, config_map("m1"))
    file = cluster.folder / "rotated.token"
    file.write_text("expired")
    async with connected(cluster.user(file)) as api, running(mirror_of(api, cluster)) as mirror:

        async def rejected() -> bool:
            return "401" in mirror.status.detail

        await wait_until_async(rejected, what="a rejection")
        file.write_text(await cluster.token([Rule("", "configmaps", ("list", "watch"))]))
        await wait_for_names(mirror, ["m1"])


KINDS = {
    "JobSet": ("jobset.test.gpufleet.dev", "v1alpha2", "jobsets"),
    "Workload": ("kueue.test.gpufleet.dev", "v1beta1", "workloads"),
    "RayCluster": ("ray.test.gpufleet.dev", "v1", "rayclusters"),
    "RayJob": ("ray.test.gpufleet.dev", "v1", "rayjobs"),
    "PyTorchJob": ("kubeflow.test.gpufleet.dev", "v1", "pytorchjobs"),
    "MPIJob": ("kubeflow.test.gpufleet.dev", "v2beta1", "mpijobs"),
    "LeaderWorkerSet": ("leaderworkerset.test.gpufleet.dev", "v1", "leaderworkersets"),
    "Workflow": ("argoproj.test.gpufleet.dev", "v1alpha1", "workflows"),
    "VirtualMachineInstance": ("kubevirt.test.gpufleet.dev", "v1", "virtualmachineinstances"),
    "VirtualMachine": ("kubevirt.test.gpufleet.dev", "v1", "virtualmachines"),
}
"""Kinds of other projects under groups of the tests, so that a given cluster can have the real ones."""

BUILT_IN = {
    "ReplicaSet": REPLICA_SETS,
    "Deployment": DEPLOYMENTS,
    "StatefulSet": STATEFUL_SETS,
    "DaemonSet": DAEMON_SETS,
    "Job": JOBS,
}

CHAINS = [
    ("ReplicaSet", "Deployment"),
    ("StatefulSet",),
    ("DaemonSet",),
    ("Job",),
    ("Job", "CronJob"),
    ("Job", "JobSet", "Workload"),
    ("RayCluster", "RayJob"),
    ("PyTorchJob",),
    ("MPIJob",),
    ("StatefulSet", "LeaderWorkerSet"),
    ("Workflow",),
    ("VirtualMachineInstance", "VirtualMachine"),
]


async def cron_jobs(cluster: ClusterUnderTest) -> ApiResource:
    """Return the version of CronJob that the cluster serves: 1.20 has v1beta1 only."""
    async with connected(cluster.kubeconfig) as api:
        listed = await api.get("/apis/batch/v1")
    return ApiResource("batch", "v1" if b'"CronJob"' in listed else "v1beta1", "cronjobs")


def owned(content: Object, owner: Object | None) -> Object:
    if owner is not None:
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        content["metadata"]["ownerReferences"] = [reference]
    return content


async def create_owner(
    cluster: ClusterUnderTest, resources: dict[str, ApiResource], kind: str, name: str, owner: Object | None
) -> Object:
    resource = resources[kind]
    api_version = f"{resource.group}/{resource.version}"
    labels = dict(SELECTOR["matchLabels"])  # its Deployment releases a ReplicaSet without them
    if kind in ("Job", "JobSet"):
        labels["kueue.x-k8s.io/queue-name"] = f"queue-of-{kind.lower()}"
    metadata: Object = {"name": name, "labels": labels}
    content = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": OWNER_SPECS.get(kind, {})}
    stored = await cluster.create(resource, owned(content, owner))
    return {**stored, "apiVersion": api_version, "kind": kind}


def gpu_pod(name: str, owner: Object | None = None) -> Object:
    limits = {"nvidia.com/gpu": "1"}
    content: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
            "nodeSelector": NOWHERE,
            "automountServiceAccountToken": False,
        },
    }
    return owned(content, owner)


async def create_pod(cluster: ClusterUnderTest, name: str, owner: Object | None) -> ClusterPod:
    """Create a pod; return it as it was created, because a controller can delete it at once."""
    pod = parse_pod(msgspec.json.encode(await cluster.create(PODS, gpu_pod(name, owner))))
    assert pod is not None
    return pod


async def test_owner_walk_follows_every_kind(cluster: ClusterUnderTest) -> None:
    resources = {**BUILT_IN, "CronJob": await cron_jobs(cluster)}
    for kind, (group, version, plural) in KINDS.items():
        await cluster.create(DEFINITIONS, definition(ApiResource(group, version, plural), kind))
        resources[kind] = ApiResource(group, version, plural)
    rules = [Rule(resource.group, resource.plural, ("get",)) for resource in resources.values()]
    user = await user_connection(cluster, rules)
    created = []
    for number, chain in enumerate(CHAINS):
        owner = None
        for kind in reversed(chain):
            owner = await create_owner(cluster, resources, kind, f"{kind.lower()}-{number}", owner)
        created.append(await create_pod(cluster, f"pod-{number}", owner))
    async with connected(user) as api:
        walk = OwnerWalk(api, SystemClock())
        pods = {pod.name: await walk.resolve(pod) for pod in created}
    assert {name: tuple(owner.kind for owner in pod.owners) for name, pod in pods.items()} == {
        f"pod-{number}": chain for number, chain in enumerate(CHAINS)
    }
    assert {pod.chain_end for pod in pods.values()} == {ChainEnd.TOP}
    assert pods["pod-3"].queue == "queue-of-job"


async def walked(cluster: ClusterUnderTest, owner: Object, rules: Sequence[Rule]) -> ClusterPod:
    user = await user_connection(cluster, rules)
    pod = await create_pod(cluster, "walked", owner)
    async with connected(user) as api:
        return await OwnerWalk(api, SystemClock()).resolve(pod)


async def test_forbidden_owner_is_named_and_ends_the_chain(cluster: ClusterUnderTest) -> None:
    deployment = await create_owner(cluster, BUILT_IN, "Deployment", "d", None)
    owner = await create_owner(cluster, BUILT_IN, "ReplicaSet", "r", deployment)
    pod = await walked(cluster, owner, [Rule("apps", "replicasets", ("get",))])
    assert [(one.kind, one.name) for one in pod.owners] == [("ReplicaSet", "r"), ("Deployment", "d")]
    assert pod.chain_end is ChainEnd.FORBIDDEN


async def test_owner_of_an_unknown_kind_is_named(cluster: ClusterUnderTest) -> None:
    owner = {"apiVersion": "absent.example.com/v1", "kind": "Thing", "metadata": {"name": "t", "uid": "u-1"}}
    pod = await walked(cluster, owner, [])
    assert [(one.kind, one.name) for one in pod.owners] == [("Thing", "t")]
    assert pod.chain_end is ChainEnd.UNKNOWN_KIND


async def test_recreated_owner_is_not_followed(cluster: ClusterUnderTest) -> None:
    deployment = await create_owner(cluster, BUILT_IN, "Deployment", "d", None)
    owner = await create_owner(cluster, BUILT_IN, "ReplicaSet", "r", deployment)
    owner["metadata"] = {**owner["metadata"], "uid": "9c2b1d7e-0000-4000-8000-000000000000"}
    pod = await walked(cluster, owner, [Rule("apps", "*", ("get",)), Rule("apps", "replicasets", ("get",))])
    assert [one.name for one in pod.owners] == ["r"]
    assert pod.chain_end is ChainEnd.REPLACED


async def test_cluster_is_identified_by_kube_system(cluster: ClusterUnderTest) -> None:
    permitted = await user_connection(cluster, [Rule("", "namespaces", ("get",))], "permitted")
    denied = await user_connection(cluster, [Rule("", "pods", ("get",))], "denied")
    async with connected(permitted) as api, connected(cluster.kubeconfig) as admin, connected(denied) as other:
        identity = await ApiIdentity(api).read()
        assert identity.system_uid
        assert identity.system_uid == (await ApiIdentity(admin).read()).system_uid
        assert (await ApiIdentity(other).read()).system_uid == ""


async def test_pods_of_a_node_are_selected_by_the_server(cluster: ClusterUnderTest) -> None:
    here, elsewhere = gpu_pod("here"), gpu_pod("elsewhere")
    node = f"node-of-{cluster.namespace}"  # no node of a given cluster, nor one of an earlier run
    here["spec"]["nodeName"], elsewhere["spec"]["nodeName"] = node, f"{node}-2"
    await cluster.create(PODS, here)
    await cluster.create(PODS, elsewhere)

    def parse(data: bytes | msgspec.Raw) -> ClusterPod | None:
        return parse_pod(data, PodSelection(all_pods=True))

    async with connected(cluster.kubeconfig) as api:
        mirror = ResourceMirror(
            api, PODS, parse, SystemClock(), query={"fieldSelector": f"spec.nodeName={node}"}, sleep=brief_sleep
        )
        async with running(mirror):
            await wait_for_state(mirror, CopyState.SYNCED)
            assert [pod.name for pod in mirror.records.values()] == ["here"]


@pytest.fixture(params=[one for one in CLUSTERS if isinstance(one, str)])
async def current_cluster(
    request: pytest.FixtureRequest, tmp_path: Path, real_server: Callable[[], KubeServer]
) -> AsyncIterator[ClusterUnderTest]:
    """Return the clusters that can serve any resource: the kube-apiserver of the tests is 1.20."""
    async with kube.tested_cluster(request.param, tmp_path, real_server) as started:
        yield started


async def serves(cluster: ClusterUnderTest, resource: ApiResource) -> bool:
    async with connected(cluster.kubeconfig) as api:
        try:
            listed = await api.get(f"/apis/{resource.group}/{resource.version}")
        except KubernetesApiError as error:
            if error.status != 404:
                raise
            return False
    return f'"{resource.plural}"'.encode() in listed


async def wait_for_record(
    cluster: ClusterUnderTest, resource: ApiResource, parse: Callable[[bytes | msgspec.Raw], Record | None], uid: str
) -> Record:
    """Return an object by its UID, as a copy of all namespaces has it."""
    async with connected(cluster.kubeconfig) as api:
        mirror = ResourceMirror(api, resource, parse, SystemClock(), sleep=brief_sleep)
        async with running(mirror):

            async def is_copied() -> bool:
                return uid in mirror.records

            await wait_until_async(is_copied, what=f"{uid} in the copy, which is {mirror.status}")
            return mirror.records[uid]


async def test_slices_and_claims_of_a_dra_driver_are_read(current_cluster: ClusterUnderTest) -> None:
    """No node has the name of the slice's, so that no pod of a given cluster can have its device."""
    cluster, driver = current_cluster, "gpu.nvidia.com"
    if not await serves(cluster, RESOURCE_SLICES):
        pytest.skip("the cluster does not serve resource.k8s.io/v1, which Kubernetes 1.34 and newer have")
    node = f"node-of-{cluster.namespace}"
    device = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-1"}}}
    content: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }
    stored = await cluster.create(RESOURCE_SLICES, content)
    found = await wait_for_record(cluster, RESOURCE_SLICES, parse_slice, stored["metadata"]["uid"])
    assert (found.node, found.slices) == (node, 1)
    assert [(one.name, one.uuid, one.kind) for one in found.devices] == [("gpu-0", "GPU-1", "gpu")]

    request = {"name": "gpu", "exactly": {"deviceClassName": "absent.test.gpufleet.dev"}}
    content = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "one-gpu"},
        "spec": {"devices": {"requests": [request]}},
    }
    stored = await cluster.create(RESOURCE_CLAIMS, content)
    result = {"request": "gpu", "driver": driver, "pool": node, "device": "gpu-0"}
    stored["status"] = {"allocation": {"devices": {"results": [result]}}}
    await cluster.replace_status(RESOURCE_CLAIMS, stored)
    claim = await wait_for_record(cluster, RESOURCE_CLAIMS, parse_claim, stored["metadata"]["uid"])
    assert [(one.driver, one.pool, one.name) for one in claim.devices] == [(driver, node, "gpu-0")]


async def test_virtual_machines_of_kubevirt_are_read(current_cluster: ClusterUnderTest) -> None:
    cluster = current_cluster
    if await serves(cluster, VIRTUAL_MACHINE_INSTANCES):
        pytest.skip("the cluster has KubeVirt, which would start the virtual machine")
    await cluster.create(DEFINITIONS, definition(VIRTUAL_MACHINE_INSTANCES, "VirtualMachineInstance"))
    stored = await cluster.create(VIRTUAL_MACHINE_INSTANCES, vmi_object("vm", namespace=cluster.namespace))
    found = await wait_for_record(cluster, VIRTUAL_MACHINE_INSTANCES, parse_vmi, stored["metadata"]["uid"])
    assert (found.name, found.vsock_cid, found.autoattach_vsock) == ("vm", CID, True)
    assert [one.device_name for one in found.devices] == [A10]


LEASE_RULES = (Rule("coordination.k8s.io", "leases", ("get", "create", "update")),)


async def test_one_of_two_replicas_leads(cluster: ClusterUnderTest) -> None:
    user = await user_connection(cluster, LEASE_RULES)
    clock = FakeClock()
    async with connected(user) as first_api, connected(user) as second_api:
        first = LeaderElection(first_api, cluster.namespace, "collector", "a", clock)
        second = LeaderElection(second_api, cluster.namespace, "collector", "b", clock)
        assert sorted(await asyncio.gather(first.attempt(), second.attempt())) == [False, True]
        leader, other = (first, second) if first.is_leader else (second, first)
        assert not await other.attempt()
        clock.advance(RENEW_SECONDS - 1)
        assert await leader.attempt()
        assert not await other.attempt()
        clock.advance(RENEW_SECONDS)  # the leader is killed
        assert not leader.is_leader
        assert not await other.attempt()
        clock.advance(DURATION_SECONDS)
        assert await other.attempt()
        assert not await leader.attempt()
        assert leader.holder == other.holder
        await other.release()
        assert await leader.attempt()


@pytest.mark.parametrize("missing", ["get", "create", "update"])
async def test_lease_needs_each_of_its_verbs(cluster: ClusterUnderTest, missing: str) -> None:
    verbs = tuple(verb for verb in ("get", "create", "update") if verb != missing)
    user = await user_connection(cluster, [Rule("coordination.k8s.io", "leases", verbs)])
    async with connected(user) as api:
        election = LeaderElection(api, cluster.namespace, "collector", "a", FakeClock())
        attempts = [await election.attempt(), await election.attempt()]
        assert "403" in election.error
        assert attempts == ([True, True] if missing == "update" else [False, False])


async def test_only_leases_can_be_written(cluster: ClusterUnderTest) -> None:
    async with connected(cluster.kubeconfig) as api:
        with pytest.raises(ValueError, match="Lease"):
            await api.write_lease("POST", CONFIG_MAPS.path(cluster.namespace), b"{}")


@pytest.mark.parametrize("kind", [one for one in CLUSTERS if one != "fake"])
async def test_suite_leaves_nothing_in_a_cluster(
    kind: str, tmp_path: Path, real_server: Callable[[], KubeServer]
) -> None:
    async with kube.tested_cluster(kind, tmp_path, real_server) as remaining:
        async with kube.tested_cluster(kind, tmp_path, real_server) as ended:
            job = await create_owner(ended, BUILT_IN, "Job", "job", None)
            await create_pod(ended, "pod", job)
            user = await user_connection(ended, LEASE_RULES)
            async with connected(user) as api:
                assert await LeaderElection(api, ended.namespace, "collector", "a", FakeClock()).attempt()
        assert isinstance(remaining, KubeCluster)
        of_namespace = (JOBS.path(ended.namespace, "job"), PODS.path(ended.namespace, "pod"))
        for path in (*of_namespace, LEASES.path(ended.namespace, "collector"), NAMESPACES.path(name=ended.namespace)):

            async def is_gone(path: str = path) -> bool:
                return not await remaining.exists(path)

            await wait_until_async(is_gone, what=f"the end of {path}")
