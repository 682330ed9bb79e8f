"""Roles of the chart: each permission is enough, used and needed by its component at a real API server."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.resources import LEASES, ApiResource
from gpufleet.model.errors import KubernetesApiError
from tests.deploy.components import (
    FAILED,
    OK,
    PENDING,
    Component,
    running_collector,
    running_enrichment,
    running_node_agent,
)
from tests.deploy.site import GUEST, Site, create_objects
from tests.holders.kubernetes.conftest import CLUSTERS
from tests.holders.kubevirt.objects import NODE
from tests.support.helm import Helm, Rendered, Values
from tests.support.kube import GIVEN, KubeCluster, KubeServer
from tests.support.kube_roles import NAMESPACE, Grant, all_grants, grants_of, installed_roles
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.system

LEASE = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "gpufleet-cluster-agent"}}
API_VERSIONS = {"jobset.x-k8s.io": "v1alpha2"}
"""Versions of API groups, if not v1."""


class Case(NamedTuple):
    """A component whose roles are tested.

    Attributes:
        values: of the chart.
        component: name of the component.
        run: runs it.
        checks: each permission, as `verb resource.group`, to the check that fails without it.
        never_read: paths of objects that it must not read; `{namespace}` is that of the release.
    """

    values: tuple[str, ...]
    component: str
    run: Component
    checks: Mapping[str, str]
    never_read: tuple[str, ...]


JOB_SET_RULE = ("group=jobset.x-k8s.io", "resources={jobsets}")
VMI = "virtualmachineinstances.kubevirt.io"
OWNER_CHECKS = {
    "get replicasets.apps": "owners of web",
    "get deployments.apps": "owners of web",
    "get statefulsets.apps": "owners of db",
    "get daemonsets.apps": "owners of node",
    "get jobs.batch": "owners of batch",
    "get cronjobs.batch": "owners of batch",
    "get jobsets.jobset.x-k8s.io": "owners of set",
    f"get {VMI}": "owners of launcher",
    "get virtualmachines.kubevirt.io": "owners of launcher",
}
COPIES = ("nodes", "pods", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", VMI)
KUBEVIRT = ("tier=3", "agent.kubevirt.enabled=true")
MACHINES = {f"{verb} {VMI}": "machines" for verb in ("list", "watch")}

OWN, DEFAULT = "/namespaces/{namespace}", "/namespaces/default"
GUEST_PATH = f"{OWN}/virtualmachineinstances/{GUEST}"
VSOCK = f"/apis/subresources.kubevirt.io/v1{GUEST_PATH}/vsock"
NEVER_READ = (
    *("/api/v1/secrets", f"/api/v1{OWN}/secrets", f"/api/v1{OWN}/secrets/gpufleet-sender", "/api/v1/events"),
    *("/api/v1/configmaps", f"/api/v1{OWN}/configmaps", "/api/v1/namespaces", f"/api/v1{DEFAULT}"),
    *(f"/api/v1{OWN}/pods/web", f"/api/v1{OWN}/pods/web/log", f"/api/v1/nodes/{NODE}", "/apis/apps/v1/deployments"),
    *(f"/apis/coordination.k8s.io/v1{where}/leases{name}" for where in (OWN, DEFAULT) for name in ("", "/other")),
    f"/apis/coordination.k8s.io/v1{DEFAULT}/leases/gpufleet-cluster-agent",
    "/apis/kubevirt.io/v1/virtualmachines",
)
"""Paths that no component may read."""

AGENT_NEVER_READS = (*NEVER_READ, "/api/v1/pods", "/api/v1/nodes", f"/apis/kubevirt.io/v1{GUEST_PATH}")

CASES = {
    "collector": Case(
        (
            *("tier=1", "clusterAgent.collect.virtualMachines=true"),
            *(f"clusterAgent.collect.otherOwners[0].{part}" for part in JOB_SET_RULE),
        ),
        "cluster-agent",
        running_collector,
        {
            "get namespaces": "identity",
            **{f"{verb} {copy}": copy for verb in ("list", "watch") for copy in COPIES},
            **OWNER_CHECKS,
            **{f"{verb} leases.coordination.k8s.io": "lease" for verb in ("create", "get", "update")},
        },
        (*NEVER_READ, VSOCK),
    ),
    "guests": Case(
        (*KUBEVIRT, "agent.kubevirt.vsock=api"),
        "agent",
        running_node_agent,
        {**MACHINES, "get virtualmachineinstances/vsock.subresources.kubevirt.io": "guest"},
        AGENT_NEVER_READS,
    ),
    "guests-from-the-node": Case(
        (*KUBEVIRT, "agent.kubevirt.vsock=node"), "agent", running_node_agent, MACHINES, (*AGENT_NEVER_READS, VSOCK)
    ),
    "enrichment": Case(
        (
            *(*KUBEVIRT, "agent.kubevirt.vsock=node", "agent.holders.pods=true", "agent.enrich.enabled=true"),
            *(f"agent.enrich.otherOwners[0].{part}" for part in JOB_SET_RULE),
        ),
        "agent",
        running_enrichment,
        {**MACHINES, **{f"{verb} pods": "pods" for verb in ("list", "watch")}, **OWNER_CHECKS},
        (*NEVER_READ, "/api/v1/nodes", VSOCK),
    ),
}


@pytest.fixture(scope="module")
def helm(peer: Callable[[str], Path]) -> Helm:
    return Helm(peer("helm"))


def render(helm: Helm, *assignments: str) -> Rendered:
    return helm.render(Values(assignments, namespace=NAMESPACE))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(real_server: Callable[[], KubeServer], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Return an API server with objects of each kind that the components read."""
    if GIVEN in os.environ:
        pytest.skip("controllers of a given cluster would delete the objects")
    started = real_server()
    async with KubeCluster(started.kubeconfig, tmp_path_factory.mktemp("roles"), started) as cluster:
        yield Site(started, await create_objects(cluster))


HOLDERS = [f"agent.holders.{name}=true" for name in ("pods", "podFolders", "claims", "processes")]
NODE_ACCESS = [f"agent.{name}=true" for name in ("kernelLog", "hostNetwork", "hostFiles")]
SERVERS = [
    f"{name}.{part}"
    for name in ("hub", "relay")
    for part in ("enabled=true", "image.repository=registry.example/gpufleet-hub", "insecure=true")
]


@pytest.mark.parametrize(
    "assignments",
    [["tier=2"], ["tier=3"], ["tier=3", *HOLDERS, *NODE_ACCESS], ["tier=3", *SERVERS]],
    ids=("tier-2", "tier-3", "node-access", "hub-and-relay"),
)
def test_only_the_collector_has_permissions(helm: Helm, assignments: list[str]) -> None:
    tier_1 = all_grants(render(helm, "tier=1"))
    assert set(tier_1) == {"cluster-agent"}
    assert all_grants(render(helm, *assignments)) == tier_1


def test_hub_and_relay_alone_have_no_permissions(helm: Helm) -> None:
    assert all_grants(render(helm, "tier=0", *SERVERS)) == {}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.component == "agent"])
def test_option_of_the_agent_gives_the_collector_nothing(helm: Helm, name: str) -> None:
    found = all_grants(render(helm, *CASES[name].values))
    assert found.pop("agent")
    assert found == all_grants(render(helm, "tier=1"))


def new_folder(parent: Path, number: int) -> Path:
    folder = parent / str(number)
    folder.mkdir()
    return folder


async def is_forbidden(connection: ApiConnection, path: str, query: Mapping[str, str] | None = None) -> bool:
    try:
        await connection.get(path, query)
    except KubernetesApiError as error:
        return error.status == 403
    return False


def request_of(grant: Grant, namespace: str) -> tuple[str, dict[str, str]]:
    """Return path and query of a request that a permission is for. Its object need not exist."""
    plural, _, subresource = grant.resource.partition("/")
    resource = ApiResource(grant.group, API_VERSIONS.get(grant.group, "v1"), plural, grant.resource != "namespaces")
    if grant.verb == "get":
        path = resource.path(namespace, grant.name or "absent")
        return f"{path}/{subresource}" if subresource else path, {}
    return resource.path(), {"watch": "1", "timeoutSeconds": "1"} if grant.verb == "watch" else {"limit": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [one for one in CLUSTERS if one != "fake"])
@pytest.mark.parametrize("name", CASES)
async def test_api_server_permits_the_roles_and_no_more(
    helm: Helm, real_server: Callable[[], KubeServer], tmp_path: Path, kind: str, name: str
) -> None:
    """Without objects, so that it holds with the controllers of a given cluster."""
    case, rendered = CASES[name], render(helm, *CASES[name].values)
    kubeconfig = Path(os.environ[GIVEN]) if kind == "given" else real_server().kubeconfig
    async with installed_roles(kubeconfig, tmp_path, rendered, case.component) as installed:
        connection = ApiConnection(ApiAccess(kubeconfig=str(installed.kubeconfig)))
        reads = [one for one in grants_of(rendered, case.component) if one.verb in ("get", "list", "watch")]
        requests = [request_of(one, installed.namespace) for one in reads]
        results = await asyncio.gather(*(is_forbidden(connection, *request) for request in requests))
        others = [path.format(namespace=installed.namespace) for path in case.never_read]
        readable = [path for path in others if not await is_forbidden(connection, path)]
        await connection.close()
    assert [str(one) for one, is_denied in zip(reads, results, strict=True) if is_denied] == []
    assert readable == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
async def test_permissions_are_enough_and_each_is_used(helm: Helm, site: Site, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    rendered = render(helm, *case.values)
    grants = grants_of(rendered, case.component)
    assert {str(one) for one in grants} == set(case.checks)
    granted = {(one.verb, one.group, one.resource) for one in grants}
    async with installed_roles(
        site.server.kubeconfig, tmp_path, rendered, case.component, server=site.server
    ) as installed:
        async with case.run(installed, site) as checks:

            async def is_working() -> bool:
                found = await checks()
                are_ok = all(found.get(check) == OK for check in case.checks.values())
                return are_ok and installed.used >= {one for one in granted if one[0] != "watch"}

            await wait_until_async(is_working, what=f"the {name} to use its permissions")

        async def are_ended() -> bool:  # a watch is in the log when it ends
            return len(installed.used) >= len(granted)

        await wait_until_async(are_ended, what="the end of the watches")
        assert installed.used == granted
        assert installed.forbidden == set()
        connection = ApiConnection(ApiAccess(kubeconfig=str(installed.kubeconfig)))
        paths = [path.format(namespace=installed.namespace) for path in case.never_read]
        readable = [path for path in paths if not await is_forbidden(connection, path)]
        await connection.close()
        assert readable == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
async def test_check_fails_without_its_permission(helm: Helm, site: Site, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    rendered = render(helm, *case.values)

    async def failing_without(grant: Grant, folder: Path) -> set[str]:
        objects = [(LEASES, LEASE)] if grant.verb == "update" else []  # else it is created, and only later updated
        async with (
            installed_roles(
                site.server.kubeconfig,
                folder,
                rendered,
                case.component,
                server=site.server,
                without=grant,
                objects=objects,
            ) as installed,
            case.run(installed, site) as checks,
        ):
            failing: set[str] = set()

            async def has_failed() -> bool:
                found = await checks()
                failing.update(check for check in case.checks.values() if found.get(check) == FAILED)
                return bool(failing and installed.forbidden) and PENDING not in found.values()

            await wait_until_async(has_failed, what=f"the {name} to fail without {grant}")
            assert installed.forbidden == {(grant.verb, grant.group, grant.resource)}
        return failing

    async with asyncio.TaskGroup() as tasks:
        results = {
            str(grant): tasks.create_task(failing_without(grant, new_folder(tmp_path, number)))
            for number, grant in enumerate(sorted(grants_of(rendered, case.component)))
        }
    assert {grant: found.result() for grant, found in results.items()} == {
        grant: {check} for grant, check in case.checks.items()
    }
