"""Route of the caller's own access, with which a node checks its token and cluster before it sends anything."""

from collections.abc import Container
from typing import Annotated, Any

from litestar import Controller, Request, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpufleet.hub.receive.clusters import Clusters
from gpufleet.model.access import CallerAccess, PostRefusal, Principal, Role
from gpufleet.web.hub.access import CALLER
from gpufleet.web.hub.openapi import errors

Cluster = Annotated[
    str | None, QueryParameter(description="Cluster to post for; default: the one that the token is bound to.")
]


class CallerRoutes(Controller):
    """Access of the caller."""

    path = CALLER
    tags = ("hub",)

    @get(summary="Role and binding of the caller's token, and whether its batches are accepted", responses=errors())
    async def get_access(
        self, request: Request[Any, Principal, Any], clusters: NamedDependency[Clusters], cluster: Cluster = None
    ) -> CallerAccess:
        """Return the caller's access."""
        return describe_access(request.auth, cluster, clusters)


def describe_access(principal: Principal, cluster: str | None, served: Container[str]) -> CallerAccess:
    """Return a principal's access; `cluster` is the cluster to post for, by default the one that the token is bound to.

    Whether a cluster is served is reported only to a sender of that cluster.
    """
    refusal = None
    cluster = cluster or principal.cluster
    if Role.SENDER not in principal.roles:
        refusal = PostRefusal.NOT_A_SENDER
    elif cluster and principal.cluster not in (None, cluster):
        refusal = PostRefusal.OTHER_CLUSTER
    elif cluster and cluster not in served:
        refusal = PostRefusal.FOREIGN_CLUSTER
    return CallerAccess(
        id=principal.id,
        roles=tuple(sorted(principal.roles)),
        cluster=principal.cluster,
        tenant=principal.tenant,
        refusal=refusal,
    )
