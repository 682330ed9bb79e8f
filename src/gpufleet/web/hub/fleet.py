"""Routes of what the fleet is made of.

Routes of the clusters.

Routes of the inventory's history.
"""

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.paging import asked, page_of
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.model.api.answer import (
    GpuPage,
    GpuRecord,
    MachinePage,
    MachineRecord,
    NodePage,
    ProcessesAnswer,
    SenderRecord,
)
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.api.inventory import ChangeKind, GpuChangePage, GpuPool
from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.web.hub.formats import listed
from gpufleet.web.hub.openapi import describe, errors
from gpufleet.web.hub.parameters import Cursor, InstantPlace, Limit, instant

Cluster = Annotated[str | None, QueryParameter(description="Only of this cluster.")]
OfMachine = Annotated[str | None, QueryParameter(description="Only of this machine, by id or name.")]


class Fleet(Controller):
    """Machines, nodes, GPUs and senders as the hub knows them."""

    path = "/v1"
    tags = ("fleet",)

    @get(
        "/fleet",
        summary="Every cluster at once: who was heard of, how many GPUs report of those expected, complete up to when",
        responses=errors(),
    )
    async def get_fleet(self, overview: NamedDependency[Overview]) -> FleetAnswer:
        """Return it as it is now."""
        return await overview.fleet()

    @get("/machines", summary="Every machine, nodes and guests", responses=errors())
    async def list_machines(
        self, queries: NamedDependency[Queries], cluster: Cluster = None, limit: Limit = None, cursor: Cursor = None
    ) -> MachinePage:
        """Return them by cluster and name."""
        return await queries.fleet.machines(cluster, asked(limit, cursor, "machines", cluster))

    @get("/machines/{machine_id:str}", summary="One machine", responses=errors(404))
    async def get_machine(self, machine_id: FromPath[str], queries: NamedDependency[Queries]) -> MachineRecord:
        """Return it by the hub's id."""
        return await queries.fleet.machine(machine_id)

    @get(
        "/machines/{machine_id:str}/processes",
        summary="Who uses the devices of a machine: process ids, memory, shares of the devices' time",
        description="By the hub's id, or by name where one machine alone has it; 409 with the candidates otherwise.",
        responses=errors(404, 409),
    )
    async def list_processes(
        self,
        machine_id: FromPath[str],
        queries: NamedDependency[Queries],
        view: Annotated[str | None, QueryParameter(description="Only of this device, by its key.")] = None,
        at: Annotated[str | None, QueryParameter(description="RFC 3339; now unless given.")] = None,
    ) -> ProcessesAnswer:
        """Return the newest table of each device, of those read in the hour before."""
        return await queries.fleet.processes(machine_id, view, instant("at", at) if at is not None else None)

    @delete(
        "/machines/{machine_id:str}",
        summary="Retire a machine that is gone: it is expected no more; nothing is erased",
        description="What is heard of it later brings it back.",
        status_code=200,
        responses=errors(404),
    )
    async def retire_machine(self, machine_id: FromPath[str], queries: NamedDependency[Queries]) -> MachineRecord:
        """Retire it; again changes only when."""
        return await queries.fleet.retire_machine(machine_id)

    @get("/nodes", summary="Every node: its GPUs, how fresh it is, its newest error", responses=errors())
    async def list_nodes(
        self, queries: NamedDependency[Queries], cluster: Cluster = None, limit: Limit = None, cursor: Cursor = None
    ) -> NodePage:
        """Return them by cluster and name."""
        return await queries.fleet.nodes(cluster, asked(limit, cursor, "nodes", cluster))

    @get("/gpus", summary="Every GPU, MIG device and vGPU instance, as each side sees it", responses=errors())
    async def list_gpus(
        self,
        queries: NamedDependency[Queries],
        cluster: Cluster = None,
        machine: OfMachine = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> GpuPage:
        """Return them by cluster, machine and address; all of a machine's at once."""
        return await queries.fleet.gpus(cluster, machine, asked(limit, cursor, "gpus", cluster, machine))

    @get(
        "/gpus/{gpu_id:path}",
        summary="One GPU",
        description="By id (`cluster/machine/kind/uuid`, slashes and all), or by UUID where one view alone has it; "
        "409 with the candidates otherwise.",
        responses=errors(404, 409),
    )
    async def get_gpu(self, gpu_id: FromPath[str], queries: NamedDependency[Queries]) -> GpuRecord:
        """Return it with its newest readings, and where it was before."""
        found = await queries.fleet.gpu(gpu_id.lstrip("/"))
        return msgspec.structs.replace(found, history=await queries.inventory.history(found))

    @get("/senders", summary="Who posts batches, how late they are, and what is missing of them", responses=errors())
    async def list_senders(
        self,
        request: Request[Any, Any, Any],
        overview: NamedDependency[Overview],
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[SenderRecord, ...]]:
        """Return them by cluster and name."""
        return listed(request, await overview.senders(asked(limit, cursor, "senders", place=tuple[str, str])))


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


Since = Annotated[str | None, QueryParameter(description="RFC 3339; the beginning unless given.")]
Until = Annotated[str | None, QueryParameter(description="RFC 3339, excluded; now unless given.")]


class Inventory(Controller):
    """What moved, what was replaced, what is alike."""

    path = "/v1/gpus"
    tags = ("fleet",)

    @get(
        "/changes",
        summary="GPUs that moved to another machine or slot, and slots that hold another GPU, newest first",
        description="As hosts tell: a GPU that is passed through to a virtual machine has not moved.",
        responses=errors(),
    )
    async def list_changes(
        self,
        queries: NamedDependency[Queries],
        cluster: Annotated[str | None, QueryParameter(description="Only of this cluster, where it is now.")] = None,
        machine: Annotated[str | None, QueryParameter(description="Only of this machine, by id or name.")] = None,
        kind: Annotated[ChangeKind | None, QueryParameter(description="Only of this kind.")] = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> GpuChangePage:
        """Return a page."""
        place = asked(limit, cursor, "changes", cluster, machine, kind, since, until, place=InstantPlace)
        return await queries.inventory.changes(
            start=instant("since", since) if since is not None else 0,
            end=instant("until", until) if until is not None else queries.now_ns(),
            cluster=cluster,
            machine=machine,
            kind=kind,
            asked=place,
        )

    @get("/pools", summary="GPUs that are alike in name, driver and VBIOS, by cluster", responses=errors())
    async def list_pools(
        self,
        request: Request[Any, Any, Any],
        queries: NamedDependency[Queries],
        cluster: Annotated[str | None, QueryParameter(description="Only of this cluster.")] = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[GpuPool, ...]]:
        """Return them by cluster, side, name, driver and VBIOS."""
        place = asked(limit, cursor, "pools", cluster, place=tuple[str, str, str, str, str])
        return listed(request, page_of(await queries.inventory.pools(cluster), _key, place))


def _key(pool: GpuPool) -> tuple[str, ...]:
    return pool.cluster, pool.side, pool.name or "", pool.driver or "", pool.vbios or ""
