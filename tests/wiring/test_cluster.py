"""Cluster collector in this process: the API server of the tests on one side, a hub on the other."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpufleet.config.agent import HubClientConfig
from gpufleet.config.cluster import ClusterAgentConfig, CollectConfig, LeaseConfig
from gpufleet.config.kubernetes import ApiConfig
from gpufleet.model.errors import ConfigError
from gpufleet.model.kubernetes import ChainEnd, CopyState
from gpufleet.model.wire.batch import ClusterPart
from gpufleet.wiring.cluster import running_cluster_agent
from tests.fakes.hub import FakeHub
from tests.fakes.kube_api import FakeKubeApi, Object, Rule
from tests.support.kube_objects import (
    CLAIM_KEY,
    DEPLOYMENTS,
    NODE_KEY,
    POD_KEY,
    REPLICA_SETS,
    SLICE_KEY,
    VMI_KEY,
    VMI_KIND,
    controller,
    gpu_node,
    gpu_pod,
    key_of,
)
from tests.support.waiting import wait_until_async
from tests.web.hub.site import running_site


class Site:
    """API server and hub."""

    def __init__(self, api: FakeKubeApi, hub: FakeHub, folder: Path) -> None:
        self.api, self.hub, self.folder = api, hub, folder

    def config(self, *, token: str = "", **changes: Any) -> ClusterAgentConfig:
        kubeconfig = self.api.kubeconfig(self.folder, token) if token else self.api.kubeconfig(self.folder)
        known: dict[str, Any] = {
            "cluster": "prod-1",
            "replica": "replica-1",
            "listen": "127.0.0.1:0",
            "state": str(self.folder / "state"),
            "api": ApiConfig(kubeconfig=str(kubeconfig)),
            "lease": LeaseConfig(namespace="gpufleet"),
            "hub": HubClientConfig(url=self.hub.url),
        }
        return ClusterAgentConfig(**{**known, **changes})

    @property
    def parts(self) -> list[ClusterPart]:
        """Return the received cluster parts in the order of their numbers."""
        batches = sorted(self.hub.taken, key=lambda batch: batch.seq)
        return [batch.cluster_part for batch in batches if batch.cluster_part is not None]

    async def wait_for_pod(self, name: str, phase: str = "Running") -> ClusterPart:
        """Wait for a part with a pod in a phase."""
        found: list[ClusterPart] = []

        async def arrived() -> bool:
            found[:] = [part for part in self.parts if any((one.name, one.phase) == (name, phase) for one in part.pods)]
            return bool(found)

        await wait_until_async(arrived, what=f"pod {name} in phase {phase}")
        return found[-1]

    async def wait_for_states(self, **states: CopyState) -> ClusterPart:
        """Wait until the newest part has copies in these states."""

        async def reached() -> bool:
            copies = {one.resource.partition(".")[0]: one.state for one in self.parts[-1].copies} if self.parts else {}
            return states.items() <= copies.items()

        await wait_until_async(reached, what=f"copies in the states {states}")
        return self.parts[-1]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with FakeKubeApi() as api, FakeHub.running() as hub:
        api.put(NODE_KEY, gpu_node("gpu-1"))
        yield Site(api, hub, tmp_path)


async def get(url: str, **headers: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        is_json = answer.content_type == "application/json"
        return answer.status, await answer.json() if is_json else await answer.text()


async def test_pods_arrive_with_their_owners_and_end(site: Site) -> None:
    deployment = site.api.put(key_of(DEPLOYMENTS), {"metadata": {"name": "web", "namespace": "test"}})
    replica_set = {"metadata": {"name": "web-1", "namespace": "test", "ownerReferences": [controller(deployment)]}}
    owner = site.api.put(key_of(REPLICA_SETS), replica_set)
    site.api.put(POD_KEY, gpu_pod("web-1-a", node="gpu-1", owner=owner))
    site.api.serve(VMI_KIND)
    async with running_cluster_agent(site.config()):
        part = await site.wait_for_pod("web-1-a")
        (pod,) = part.pods
        assert [(one.kind, one.name) for one in pod.owners] == [("ReplicaSet", "web-1"), ("Deployment", "web")]
        assert pod.chain_end is ChainEnd.TOP
        vmi = {"spec": {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": "nvidia.com/A10"}]}}}}
        site.api.put(VMI_KEY, {"metadata": {"name": "vm-1", "namespace": "test"}, **vmi})
        site.api.put(POD_KEY, gpu_pod("late"))
        await site.wait_for_pod("late")
        site.api.delete(POD_KEY, "test", "late")

        async def ended() -> bool:
            return any(part.removed for part in site.parts)

        await wait_until_async(ended)
    machines = {machine.name: machine for batch in site.hub.taken for machine in batch.machines}
    node = site.api.objects(NODE_KEY)[0]["metadata"]["uid"]
    assert (machines["gpu-1"].k8s_node_uid, machines["gpu-1"].zone) == (node, "zone-a")
    assert {one.system_uid for one in site.parts if one.system_uid} == {
        site.api.objects(("", "v1", "namespaces"))[0]["metadata"]["uid"]
    }
    assert [one.name for part in site.parts for one in part.vmis] == ["vm-1"]
    assert {(one.resource, one.uid) for part in site.parts for one in part.removed} == {
        ("pods", next(one.uid for part in site.parts for one in part.pods if one.name == "late"))
    }  # sent until the hub has answered
    (lease,) = site.api.objects(("coordination.k8s.io", "v1", "leases"))
    assert not lease["spec"]["holderIdentity"]  # given back


async def test_devices_and_labels_of_the_configuration_arrive(site: Site) -> None:
    content = {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-1"}, "type": {"string": "gpu"}}}
    pool = {"name": "gpu-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "gpu-1", "pool": pool, "devices": [content]}
    site.api.put(SLICE_KEY, {"metadata": {"name": "slice-1"}, "spec": spec})
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "gpu-1", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    site.api.put(CLAIM_KEY, {"metadata": {"name": "claim-1", "namespace": "test"}, "status": status})
    pod = gpu_pod("single")
    pod["metadata"]["labels"] = {"team": "a", "secret": "b", "app": "train"}
    pod["metadata"]["annotations"] = {"example.com/project": "p", "other": "o"}
    site.api.put(POD_KEY, pod)
    collect = CollectConfig(pod_labels=("team",), pod_annotations=("example.com/*",))
    async with running_cluster_agent(site.config(collect=collect, lease=LeaseConfig(enabled=False))):
        part = await site.wait_for_pod("single")

        async def have_arrived() -> bool:
            return any(part.slices for part in site.parts) and any(part.claims for part in site.parts)

        await wait_until_async(have_arrived)
    (found,) = part.pods
    assert (found.labels, found.annotations) == ({"app": "train", "team": "a"}, {"example.com/project": "p"})
    devices = [device for part in site.parts for one in part.slices for device in one.devices]
    assert {device.uuid for device in devices} == {"GPU-1"}  # objects are sent repeatedly
    assert {one.name for part in site.parts for one in part.claims} == {"claim-1"}


def resource_slice(name: str, *gpus: int, slices: int) -> Object:
    """Return a slice of NVIDIA's driver, with a MIG device of each GPU besides the GPU."""
    devices = []
    for number in gpus:
        own = {
            "uuid": {"string": f"GPU-{number}"},
            "resource.kubernetes.io/pciBusID": {"string": f"0000:0{number}:00.0"},
        }
        parts = {"type": {"string": "mig"}, "parentUUID": {"string": f"GPU-{number}"}}
        devices += [
            {"name": f"gpu-{number}", "attributes": {"type": {"string": "gpu"}, **own}},
            {"name": f"gpu-{number}-mig-19-0-1", "attributes": parts},
        ]
    pool = {"name": "gpu-1", "generation": 1, "resourceSliceCount": slices}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "gpu-1", "pool": pool, "devices": devices}
    return {"metadata": {"name": name}, "spec": spec}


def put_claim(api: FakeKubeApi) -> None:
    """Create a pod on the node `gpu-1` with a claim that has its second GPU."""
    pod = gpu_pod("train", node="gpu-1")
    pod["spec"] |= {"containers": [{"name": "main"}], "resourceClaims": [{"name": "g", "resourceClaimName": "claim"}]}
    pod["status"]["startTime"] = "2026-01-01T00:00:00Z"
    stored = api.put(POD_KEY, pod)
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "gpu-1", "device": "gpu-2"}
    user = {"resource": "pods", "name": "train", "uid": stored["metadata"]["uid"]}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    api.put(CLAIM_KEY, {"metadata": {"name": "claim", "namespace": "test"}, "status": status})


async def test_gpus_and_claims_of_a_dra_driver_are_known_to_the_hub(tmp_path: Path) -> None:
    async with FakeKubeApi() as api, running_site(tmp_path / "hub") as hub:
        api.put(NODE_KEY, {"metadata": {"name": "gpu-1"}, "status": {"allocatable": {"cpu": "64"}}})
        api.put(SLICE_KEY, resource_slice("first", 1, 2, 3, slices=2))
        config = ClusterAgentConfig(
            cluster="local",
            replica="replica-1",
            listen="127.0.0.1:0",
            state=str(tmp_path / "state"),
            api=ApiConfig(kubeconfig=str(api.kubeconfig(tmp_path))),
            lease=LeaseConfig(enabled=False),
            hub=HubClientConfig(url=hub.hub.url),
        )

        async def coverage() -> Any:
            return (await hub.request("/v1/clusters/local"))[1]["coverage"]

        async def is_expected(count: int | None) -> bool:
            return bool((await coverage())["sources"]["kubernetes"] == count)

        async def has_holder() -> bool:
            (declared,) = (await coverage())["kubernetes"]
            return bool(declared["allocated"] and (await hub.request("/v1/holders"))[1]["items"])

        async with running_cluster_agent(config):
            api.put(SLICE_KEY, resource_slice("second", 4, slices=2))
            await wait_until_async(lambda: is_expected(4), what="the GPUs of both slices")
            (declared,) = (await coverage())["kubernetes"]
            assert (declared["machines"], declared["gpus"], declared["published"]) == (1, 4, 4)
            _, machines = await hub.request("/v1/machines")
            (machine,) = machines["items"]
            assert (machine["machine"]["name"], machine["liveness"]["state"]) == ("gpu-1", "never_seen")
            assert [(one["resource"], one["capacity"]) for one in machine["kubernetes"]] == [("gpu_nvidia_com", 4)]

            put_claim(api)
            await wait_until_async(has_holder, what="the holder by its claim")
            (row,) = (await hub.request("/v1/holders"))[1]["items"]
            assert (row["holder"]["name"], row["claim"], row["methods"]) == ("train", "test/claim", ["resource_claim"])
            assert row["device"] == f"local/{machine['id']}/gpu/GPU-2"
            assert (await coverage())["kubernetes"][0]["allocated"] == 1

            api.delete(SLICE_KEY, "", "second")
            await wait_until_async(lambda: is_expected(None), what="the incomplete pool to be unknown")


async def test_copies_without_permission_or_resource_do_not_stop_the_others(site: Site) -> None:
    rules = (Rule("", "nodes", ("list", "watch")), Rule("", "pods", ("list", "watch")))
    site.api.tokens["narrow"] = (*rules, Rule("resource.k8s.io", "resourceslices", ("list", "watch")))
    site.api.put(POD_KEY, gpu_pod("single"))
    config = site.config(token="narrow", lease=LeaseConfig(enabled=False))
    async with running_cluster_agent(config) as running:
        await site.wait_for_pod("single")
        part = await site.wait_for_states(
            pods=CopyState.SYNCED,
            resourceslices=CopyState.SYNCED,
            resourceclaims=CopyState.FORBIDDEN,
            virtualmachineinstances=CopyState.NOT_SERVED,
        )
        assert "403" in next(one.detail for one in part.copies if one.state is CopyState.FORBIDDEN)
        assert (await get(f"{running.url}/readyz"))[0] == 200
        _, document = await get(f"{running.url}/v1/snapshot")
        assert [one["name"] for one in document["pods"]] == ["single"]
        assert "403" in document["status"]["identity_error"]


async def test_outage_of_the_api_server_ends_nothing(site: Site) -> None:
    site.api.put(POD_KEY, gpu_pod("before"))
    async with running_cluster_agent(site.config(lease=LeaseConfig(enabled=False))):
        await site.wait_for_pod("before")
        await site.api.stop()
        await site.wait_for_states(pods=CopyState.STALE, nodes=CopyState.STALE)
        site.api.put(POD_KEY, gpu_pod("before", phase="Failed"))
        await site.api.start()
        await site.wait_for_pod("before", "Failed")
    assert not [one for part in site.parts for one in part.removed]


async def test_page_and_token(site: Site, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-of-the-operator\n")
    lease = LeaseConfig(enabled=False)
    config = site.config(token_file=str(tmp_path / "token"), hub=HubClientConfig(), lease=lease)
    async with running_cluster_agent(config) as running:

        async def is_ready() -> bool:
            return (await get(f"{running.url}/readyz"))[0] == 200

        await wait_until_async(is_ready)
        assert (await get(f"{running.url}/metrics"))[0] == 401
        assert (await get(f"{running.url}/healthz"))[0] == 200
        status, page = await get(f"{running.url}/metrics", Authorization="Bearer secret-of-the-operator")
    assert status == 200
    assert 'gpufleet_cluster_agent_copy_objects{replica="replica-1",resource="nodes"} 1' in page
    assert 'gpufleet_cluster_agent_leader{replica="replica-1"} 1' in page
    assert site.hub.posts == []


async def test_disabled_resources_are_not_read(site: Site) -> None:
    collect = CollectConfig(
        pods=False, owners=False, resource_slices=False, resource_claims=False, virtual_machines=False
    )
    async with running_cluster_agent(site.config(collect=collect, lease=LeaseConfig(enabled=False))):
        await site.wait_for_states(nodes=CopyState.SYNCED)
    assert {path for _, path, _ in site.api.requests} == {"/api/v1/nodes", "/api/v1/namespaces/kube-system", "/version"}


async def test_lease_outside_a_pod_needs_a_namespace(site: Site) -> None:
    with pytest.raises(ConfigError) as raised:
        async with running_cluster_agent(site.config(lease=LeaseConfig())):
            pass
    assert raised.value.key == "lease.namespace"
