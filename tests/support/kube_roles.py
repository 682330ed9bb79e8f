"""Roles of a rendered chart: what each component may do, and the same at a real API server."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import NamedTuple, Self

from gpufleet.holders.kubernetes.resources import ApiResource
from tests.support.helm import Object, Rendered
from tests.support.kube import AuditedRequest, KubeCluster, KubeServer
from tests.support.waiting import wait_until_async

NAMESPACE = "rendered-namespace"
"""Namespace of the renderings, which `installed_roles` replaces by one of the test's."""

ROLES = {"ClusterRoleBinding": "ClusterRole", "RoleBinding": "Role"}
"""Kind of a binding to the kind of its role."""

RBAC = "rbac.authorization.k8s.io"
RESOURCES = {
    "ServiceAccount": ApiResource("", "v1", "serviceaccounts"),
    "Role": ApiResource(RBAC, "v1", "roles"),
    "RoleBinding": ApiResource(RBAC, "v1", "rolebindings"),
    "ClusterRole": ApiResource(RBAC, "v1", "clusterroles", is_namespaced=False),
    "ClusterRoleBinding": ApiResource(RBAC, "v1", "clusterrolebindings", is_namespaced=False),
}


class Grant(NamedTuple):
    """A single permission.

    Attributes:
        verb, group, resource: `resource` has the subresource after a slash.
        name: the only object, or empty for all objects.
        is_namespaced: whether it is for the namespace of the release only.
    """

    verb: str
    group: str
    resource: str
    name: str = ""
    is_namespaced: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"

    @property
    def rule(self) -> Object:
        """Return the rule of a role that permits this only."""
        names = {"resourceNames": [self.name]} if self.name else {}
        return {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb], **names}

    @classmethod
    def of_rules(cls, rules: Iterable[Object], *, is_namespaced: bool) -> set[Self]:
        """Return what rules permit."""
        return {
            cls(verb, group, resource, name, is_namespaced)
            for rule in rules
            for group in rule.get("apiGroups", ())
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames") or [""]
        }


def grants_of(rendered: Rendered, component: str) -> frozenset[Grant]:
    """Return what the chart permits a component."""
    account = rendered.pods()[component]["serviceAccountName"]
    found: set[Grant] = set()
    for binding, kind in ROLES.items():
        roles = {one["metadata"]["name"]: one for one in rendered.of(kind).values()}
        for one in rendered.of(binding).values():
            if account in [subject["name"] for subject in one["subjects"]]:
                assert one["roleRef"]["kind"] == kind
                rules = roles[one["roleRef"]["name"]]["rules"]
                found |= Grant.of_rules(rules, is_namespaced=kind == "Role")
    return frozenset(found)


def all_grants(rendered: Rendered) -> dict[str, frozenset[Grant]]:
    """Return the components that the chart permits something, with what it permits."""
    bindings = [one for kind in ROLES for one in rendered.of(kind).values()]
    assert len(bindings) == sum(len(rendered.of(kind)) for kind in ROLES.values()), "a role without binding"
    found = {component: grants_of(rendered, component) for component in rendered.pods()}
    accounts = {pod["serviceAccountName"] for pod in rendered.pods().values()}
    assert {subject["name"] for one in bindings for subject in one["subjects"]} <= accounts
    return {component: grants for component, grants in found.items() if grants}


class InstalledRoles:
    """Roles of a component at a real API server, in a namespace of its own.

    Attributes:
        pod: specification of the component's pod.
        namespace: of the release.
        folder: for files of the component.
        kubeconfig: with the component's credentials.
    """

    def __init__(self, server: KubeServer | None, cluster: KubeCluster, pod: Object, kubeconfig: Path) -> None:
        self._server = server
        self.pod = pod
        self.namespace, self.folder = cluster.namespace, cluster.folder
        self.kubeconfig = kubeconfig

    @property
    def requests(self) -> set[AuditedRequest]:
        """Return the requests for resources that the component has sent to a server of the tests."""
        assert self._server is not None, "a given cluster has no audit log"
        return self._server.requests_of(self.namespace, self.pod["serviceAccountName"])

    @property
    def used(self) -> set[tuple[str, str, str]]:
        """Return verb, group and resource of these requests."""
        return {(one.verb, one.group, one.resource) for one in self.requests}

    @property
    def forbidden(self) -> set[tuple[str, str, str]]:
        """Return verb, group and resource of the requests with status 403."""
        return {(one.verb, one.group, one.resource) for one in self.requests if one.status == 403}


@contextlib.asynccontextmanager
async def installed_roles(
    kubeconfig: Path,
    folder: Path,
    rendering: Rendered,
    component: str,
    *,
    server: KubeServer | None = None,
    without: Grant | None = None,
    objects: Iterable[tuple[ApiResource, Object]] = (),
) -> AsyncIterator[InstalledRoles]:
    """Create the roles of a rendering, and wait until the server applies them.

    Args:
        kubeconfig: of an administrator.
        folder: an empty folder.
        rendering: for the namespace `NAMESPACE`.
        component: the component whose credentials are created.
        server: the API server, if the tests started it.
        without: a permission that the roles do not have.
        objects: further objects of the namespace.
    """
    async with KubeCluster(kubeconfig, folder, server) as cluster:
        rendered = Rendered(rendering.text.replace(NAMESPACE, cluster.namespace))
        pod = rendered.pods()[component]
        account: str = pod["serviceAccountName"]
        permitted = grants_of(rendered, component) - {without}
        for kind, resource in RESOURCES.items():
            for one in rendered.of(kind).values():
                if without is not None and kind in ROLES.values():
                    grants = Grant.of_rules(one["rules"], is_namespaced=kind == "Role")
                    one["rules"] = [grant.rule for grant in sorted(grants - {without})]
                await cluster.create(resource, one)
        for resource, content in objects:
            await cluster.create(resource, content)

        async def are_applied() -> bool:
            for namespace in (cluster.namespace, "default"):
                expected = {one for one in permitted if namespace != "default" or not one.is_namespaced}
                found, of_every_account = [
                    Grant.of_rules(await cluster.rules_of(one, namespace), is_namespaced=False)
                    for one in (account, "default")
                ]
                if found != {one._replace(is_namespaced=False) for one in expected} | of_every_account:
                    return False
            return True

        await wait_until_async(are_applied, what="exactly the permissions of the roles")
        token = folder / "token"
        token.write_text(await cluster.account_token(account))
        yield InstalledRoles(server, cluster, pod, cluster.user(token))
