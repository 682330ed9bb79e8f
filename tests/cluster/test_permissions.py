"""Permissions of the collector: sufficient, and none without need, at the fake and at a real API server."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from gpufleet.cluster.permissions import Permission, owner_permissions, required_permissions
from gpufleet.config.cluster import ClusterAgentConfig, CollectConfig, LeaseConfig
from gpufleet.config.kubernetes import ApiConfig
from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.resources import LEASES, NODES, PODS
from gpufleet.model.errors import KubernetesApiError
from gpufleet.model.kubernetes import ChainEnd, CopyState
from gpufleet.wiring.cluster import running_cluster_agent
from tests.fakes.kube_api import Rule
from tests.support.forking import ROOT
from tests.support.kube import ClusterUnderTest
from tests.support.kube_objects import DEPLOYMENTS, REPLICA_SETS, controller, gpu_node
from tests.support.waiting import wait_until_async

TIER_1 = CollectConfig(resource_slices=False, resource_claims=False, virtual_machines=False)
"""Without DRA and KubeVirt, which the real API server of the tests does not have."""

LABELS = {"app": "a"}
CONTAINER = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
POD_SPEC = {"containers": [CONTAINER], "automountServiceAccountToken": False}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [CONTAINER]}}
SPEC = {"replicas": 0, "selector": {"matchLabels": LABELS}, "template": TEMPLATE}


async def problems(cluster: ClusterUnderTest, name: str, rules: Sequence[Rule]) -> set[str]:
    """Run a collector with these rules; return what is missing."""
    file = cluster.folder / f"{name}.token"
    file.write_text(await cluster.token(rules))
    kubeconfig = str(cluster.user(file))
    await wait_for_rules(kubeconfig, rules)
    config = ClusterAgentConfig(
        replica=name,
        listen="127.0.0.1:0",
        state=str(cluster.folder / name),
        api=ApiConfig(kubeconfig=kubeconfig),
        lease=LeaseConfig(namespace=cluster.namespace, name=f"lease-{name}"),
        collect=TIER_1,
    )
    async with running_cluster_agent(config) as running, aiohttp.ClientSession() as session:
        document: dict[str, Any] = {}

        async def is_settled() -> bool:
            async with session.get(f"{running.url}/v1/snapshot") as answer:
                document.update(await answer.json())
            status = document["status"]
            states = {one["state"] for one in status["copies"]}
            is_denied = bool({CopyState.FORBIDDEN} & states)
            has_pods = any(one["resource"] == "pods" and one["state"] == CopyState.SYNCED for one in status["copies"])
            is_walked = not has_pods or any(one["chain_end"] != ChainEnd.NOT_READ for one in document["pods"])
            elected = status["is_leader"] or status["election_error"]
            identified = status["system_uid"] or status["identity_error"] not in ("", "not read yet")
            return bool(CopyState.STARTING not in states and (is_denied or is_walked) and elected and identified)

        await wait_until_async(is_settled, what=f"the collector {name}")
    status = document["status"]
    found = {one["resource"] for one in status["copies"] if one["state"] != CopyState.SYNCED}
    found |= {f"owner {one['chain_end']}" for one in document["pods"] if one["chain_end"] != ChainEnd.TOP}
    found |= {"namespaces"} if status["identity_error"] else set()
    return found | ({"leases"} if not status["is_leader"] else set())


async def wait_for_rules(kubeconfig: str, rules: Sequence[Rule]) -> None:
    """Wait until the API server applies the rules of a new account: some milliseconds later."""
    path = next(resource.path() for resource in (NODES, PODS) if Rule("", resource.plural, ("list", "watch")) in rules)
    connection = ApiConnection(ApiAccess(kubeconfig=kubeconfig))

    async def is_applied() -> bool:
        try:
            return bool(await connection.get(path, {"limit": "1"}))
        except KubernetesApiError as error:
            if error.status != 403:
                raise
            return False

    await wait_until_async(is_applied, what="the rules of a new account")
    await connection.close()


def without_each(permissions: Sequence[Permission]) -> Iterator[tuple[str, str, list[Rule]]]:
    """Yield resource, verb, and the rules without this verb."""
    for number, one in enumerate(permissions):
        for verb in one.verbs:
            others = tuple(other for other in one.verbs if other != verb)
            kept = [*permissions[:number], *permissions[number + 1 :]]
            rules = [Rule(other.group, other.resource, other.verbs) for other in kept]
            yield one.resource, verb, [*rules, *([Rule(one.group, one.resource, others)] if others else [])]


async def test_every_rule_is_needed_and_no_other_is_used(cluster: ClusterUnderTest) -> None:
    deployment = await cluster.create(
        DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": SPEC}
    )
    metadata: dict[str, Any] = {"name": "web-1", "ownerReferences": [controller(deployment)]}
    owner = await cluster.create(
        REPLICA_SETS, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": SPEC}
    )
    metadata = {"name": "web-1-a", "labels": LABELS, "ownerReferences": [controller(owner)]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": POD_SPEC}
    await cluster.create(PODS, pod)
    await cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", **gpu_node(f"node-of-{cluster.namespace}")})

    config = ClusterAgentConfig(collect=TIER_1)
    apps = [one for one in owner_permissions() if one.resource in ("replicasets", "deployments")]
    permissions = [*required_permissions(config), *apps]
    rules = [Rule(one.group, one.resource, one.verbs) for one in permissions]
    assert await problems(cluster, "tier-1", rules) == set()

    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lease-leases-update"}}
    await cluster.create(LEASES, lease)  # else it is created, and only later updated
    reduced = list(without_each(permissions))
    async with asyncio.TaskGroup() as tasks:
        results = [
            tasks.create_task(problems(cluster, f"{resource}-{verb}", rules)) for resource, verb, rules in reduced
        ]
    for (resource, verb, _), found in zip(reduced, results, strict=True):
        expected = {"owner forbidden"} if resource in ("replicasets", "deployments") else {resource}
        assert found.result() == expected, f"without {verb} {resource}"


def test_documentation_lists_every_permission() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    for one in (*required_permissions(ClusterAgentConfig()), *owner_permissions()):
        verbs = ", ".join(one.verbs)
        assert any(f"`{one.name}`" in row[0] and row[1] == verbs for row in rows), f"{verbs} {one.name}"


def test_permissions_follow_the_configuration(tmp_path: Path) -> None:
    names = [one.name for one in required_permissions(ClusterAgentConfig(state=str(tmp_path)))]
    assert names == [
        *("namespaces", "nodes", "pods", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io"),
        *("virtualmachineinstances.kubevirt.io", "leases.coordination.k8s.io", "leases.coordination.k8s.io"),
    ]
    narrow = CollectConfig(
        pods=False, owners=False, resource_slices=False, resource_claims=False, virtual_machines=False
    )
    config = ClusterAgentConfig(collect=narrow, lease=LeaseConfig(enabled=False))
    assert [one.name for one in required_permissions(config)] == ["namespaces", "nodes"]
    verbs = {verb for one in (*required_permissions(ClusterAgentConfig()), *owner_permissions()) for verb in one.verbs}
    assert verbs == {"get", "list", "watch", "create", "update"}
    assert all(one.verbs == ("get",) for one in owner_permissions())
