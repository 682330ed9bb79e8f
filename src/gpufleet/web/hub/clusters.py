"""Routes of the clusters."""

from litestar import Controller, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from gpufleet.hub.clusters import Clusters
from gpufleet.hub.overview import Overview
from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.web.hub.openapi import describe, errors


class ClusterRoutes(Controller):
    """The clusters that the hub serves."""

    path = "/v1/clusters"
    tags = ("clusters",)

    @get(summary="Every cluster, closed ones too, with how fresh and complete it is", responses=errors())
    async def list_clusters(self, overview: NamedDependency[Overview]) -> tuple[ClusterRecord, ...]:
        """Return them by id."""
        return await overview.clusters()

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
