"""Routes of the clusters."""

from typing import Any

from litestar import Controller, Request, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from gpufleet.hub.clusters import Clusters
from gpufleet.hub.overview import Overview
from gpufleet.hub.paging import asked, page_of
from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.web.hub.formats import listed
from gpufleet.web.hub.openapi import describe, errors
from gpufleet.web.hub.parameters import Cursor, Limit


class ClusterRoutes(Controller):
    """The clusters that the hub serves."""

    path = "/v1/clusters"
    tags = ("clusters",)

    @get(summary="Every cluster, closed ones too, with how fresh and complete it is", responses=errors())
    async def list_clusters(
        self,
        request: Request[Any, Any, Any],
        overview: NamedDependency[Overview],
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[ClusterRecord, ...]]:
        """Return them by id."""
        place = asked(limit, cursor, "clusters", place=tuple[str])
        return listed(request, page_of(await overview.clusters(), lambda one: (one.cluster.id,), place))

    @put(
        "/{cluster_id:str}",
        summary="Register a cluster, or change what belongs to it",
        description="201 when it had not been registered before. From then on its batches are taken; a closed one is "
        "open again.",
        responses=describe(ClusterRecord, "It had not been registered before."),
    )
    async def put_cluster(
        self, cluster_id: FromPath[str], data: JSONBody[ClusterSpec], clusters: NamedDependency[Clusters]
    ) -> Response[ClusterRecord]:
        """Keep what belongs to it."""
        record, is_new = await clusters.put(cluster_id, data)
        return Response(record, status_code=201 if is_new else 200)

    @get("/{cluster_id:str}", summary="A cluster: as it is kept, how fresh and how complete", responses=errors(404))
    async def get_cluster(self, cluster_id: FromPath[str], overview: NamedDependency[Overview]) -> ClusterRecord:
        """Return it."""
        return await overview.cluster(cluster_id)

    @delete(
        "/{cluster_id:str}",
        summary="Close a cluster: no more batches are taken; nothing is erased",
        description="409 where the hub's configuration names it.",
        status_code=200,
        responses=errors(404, 409),
    )
    async def close_cluster(self, cluster_id: FromPath[str], clusters: NamedDependency[Clusters]) -> ClusterRecord:
        """Close it; again changes nothing."""
        return await clusters.close(cluster_id)
