"""Checks of a cluster collector's permissions, by the requests that it sends. Nothing is written."""

from gpufleet.cluster.permissions import Permission
from gpufleet.doctor.facts import CheckResult, CheckVerdict
from gpufleet.holders.kubernetes.connection import ApiConnection
from gpufleet.holders.kubernetes.resources import (
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VIRTUAL_MACHINE_INSTANCES,
)
from gpufleet.model.errors import KubernetesApiError

_RESOURCES = {
    (one.group, one.plural): one
    for one in (NAMESPACES, NODES, PODS, RESOURCE_SLICES, RESOURCE_CLAIMS, VIRTUAL_MACHINE_INSTANCES, LEASES)
}
_WRITES = ("create", "update")

_PROVES = "the API server permits what the collector needs of this resource"


async def examine_permissions(
    connection: ApiConnection, permissions: tuple[Permission, ...], lease_namespace: str
) -> tuple[CheckResult, ...]:
    """Try each permission; return a result for each.

    Args:
        connection: to the API server, with the collector's own credentials.
        permissions: what the collector needs.
        lease_namespace: namespace of the Lease.
    """
    return tuple([await _examine(connection, one, lease_namespace) for one in permissions])


async def _examine(connection: ApiConnection, permission: Permission, lease_namespace: str) -> CheckResult:
    name = f"{' '.join(permission.verbs)} {permission.name}"
    namespace = lease_namespace if permission.is_namespaced else ""
    tried = [verb for verb in permission.verbs if verb not in _WRITES]
    for verb in tried:
        try:
            await _try(connection, permission, verb, namespace)
        except KubernetesApiError as error:
            return _failure(name, permission, verb, error, namespace)
    if len(tried) < len(permission.verbs):
        found = "not tried, because it would write" if not tried else f"{' '.join(tried)} permitted, update not tried"
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=_PROVES, found=found)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=_PROVES, found="permitted")


async def _try(connection: ApiConnection, permission: Permission, verb: str, namespace: str) -> None:
    """Send a request with this verb.

    Raises:
        KubernetesApiError: if it is not permitted, or gets no answer.
    """
    resource = _RESOURCES[permission.group, permission.resource]
    if verb == "get":
        await connection.get(resource.path(namespace, permission.names[0]))
    elif verb == "list":
        await connection.get(resource.path(namespace), {"limit": "1"})
    else:
        query = {"watch": "1", "timeoutSeconds": "1"}
        async with connection.watch(resource.path(namespace), query, accept="application/json", idle_seconds=1.0):
            pass


def _failure(name: str, permission: Permission, verb: str, error: KubernetesApiError, namespace: str) -> CheckResult:
    if error.status == 404:
        if namespace:
            found = "the Lease does not exist yet, update not tried"
            return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=_PROVES, found=found)
        found = "the API server does not have this resource"
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=_PROVES, found=found)
    if error.status != 403:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=_PROVES, found=str(error))
    names = f", resourceNames: [{', '.join(permission.names)}]" if permission.names else ""
    rule = (
        f'{{apiGroups: ["{permission.group}"], resources: [{permission.resource}]{names}, '
        f"verbs: [{', '.join(permission.verbs)}]}}"
    )
    where = f"a Role in the namespace {namespace}" if namespace else "a ClusterRole"
    return CheckResult(
        name=name,
        verdict=CheckVerdict.FAILED,
        proves=_PROVES,
        found=f"{verb} is forbidden; it is for: {permission.reason}",
        fix=f"add to {where} of the collector's service account: {rule}",
    )
