"""Routes of machines, nodes, GPUs, senders and clusters, and of inventory changes."""

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from gpufleet.fleet.contract.report import ConformanceReport
from gpufleet.hub.query import Queries
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.paging import cut_page, parse_page_request
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.model.api.answer import (
    GpuPage,
    GpuRecord,
    MachinePage,
    MachineRecord,
    MachineSeriesAnswer,
    NodeGpusPage,
    NodePage,
    ProcessesAnswer,
)
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.api.inventory import ChangeKind, GpuChangePage, GpuPool
from gpufleet.model.api.probe import ProbeChangePage
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.web.hub.formats import list_response
from gpufleet.web.hub.openapi import describe, errors
from gpufleet.web.hub.parameters import (
    Cursor,
    End,
    InstantPlace,
    Limit,
    Metrics,
    Start,
    Step,
    parse_instant,
    parse_window,
)

Cluster = Annotated[str | None, QueryParameter(description="Only entries of this cluster.")]
OfMachine = Annotated[str | None, QueryParameter(description="Only entries of this machine, by id or name.")]


PROBED_MACHINES = 200
"""Maximum machines of a page with their performance probe: every newest sample of theirs is read."""


class FleetRoutes(Controller):
    """Machines, nodes, GPUs and senders."""

    path = "/v1"
    tags = ("fleet",)

    @get(
        "/fleet",
        summary="Overview of all clusters: freshness, reporting and expected GPUs, completeness",
        responses=errors(),
    )
    async def get_fleet(self, overview: NamedDependency[Overview]) -> FleetAnswer:
        """Return the overview."""
        return await overview.fleet()

    @get("/machines", summary="List machines: nodes and guests", responses=errors())
    async def list_machines(
        self,
        queries: NamedDependency[Queries],
        cluster: Cluster = None,
        limit: Limit = None,
        cursor: Cursor = None,
        probe: Annotated[bool, QueryParameter(description="Add the readings of the performance probe.")] = False,
    ) -> MachinePage:
        """Return a page, sorted by cluster and name."""
        page = parse_page_request(limit, cursor, "machines", cluster)
        if probe:
            page = msgspec.structs.replace(page, limit=min(page.limit, PROBED_MACHINES))
        return await queries.fleet.machines(cluster, page, probe=probe)

    @get(
        "/machines/{machine_id:str}",
        summary="Get a machine",
        description="`machine_id` is the hub's id or a unique name; 404 lists similar names.",
        responses=errors(404, 409),
    )
    async def get_machine(self, machine_id: FromPath[str], queries: NamedDependency[Queries]) -> MachineRecord:
        """Return a machine by the hub's id or its name."""
        return await queries.fleet.machine(machine_id)

    @get(
        "/machines/{machine_id:str}/processes",
        summary="List processes on the devices of a machine: process ids, memory, utilisation",
        description="`machine_id` is the hub's id or a unique name; 409 lists the candidates of an ambiguous name.",
        responses=errors(404, 409),
    )
    async def list_processes(
        self,
        machine_id: FromPath[str],
        queries: NamedDependency[Queries],
        view: Annotated[str | None, QueryParameter(description="Only this device, by view key.")] = None,
        at: Annotated[str | None, QueryParameter(description="RFC 3339; default: now.")] = None,
    ) -> ProcessesAnswer:
        """Return the newest process table of each device, not older than one hour before `at`."""
        return await queries.fleet.processes(machine_id, view, parse_instant("at", at) if at is not None else None)

    @get(
        "/machines/{machine_id:str}/series",
        summary="Time series of a machine and its devices",
        description="`machine_id` is the hub's id or a unique name; 409 lists the candidates of an ambiguous name.",
        responses=errors(404, 409),
    )
    async def machine_series(
        self,
        machine_id: FromPath[str],
        queries: NamedDependency[Queries],
        view: Annotated[
            list[str] | None, QueryParameter(description="Only this device, by view key; may be repeated.")
        ] = None,
        metric: Metrics = None,
        start: Start = None,
        end: End = None,
        step: Step = None,
    ) -> MachineSeriesAnswer:
        """Return a series per device and metric, and those of the machine itself."""
        window = parse_window(start, end, step, queries.now_ns())
        return await queries.machine_series.series(machine_id, view or [], metric or [], window)

    @get(
        "/machines/{machine_id:str}/probe/changes",
        summary="List changes of the performance probe of a machine, newest first",
        description="Texts, such as huge pages and versions, and numbers of devices. "
        "`machine_id` is the hub's id or a unique name; 409 lists the candidates of an ambiguous name.",
        responses=errors(404, 409),
    )
    async def probe_changes(
        self,
        machine_id: FromPath[str],
        queries: NamedDependency[Queries],
        since: Annotated[str | None, QueryParameter(description="RFC 3339; default: the oldest change.")] = None,
        until: Annotated[str | None, QueryParameter(description="RFC 3339, exclusive; default: now.")] = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> ProbeChangePage:
        """Return a page."""
        place = tuple[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], str]
        requested = parse_page_request(limit, cursor, "probe changes", machine_id, since, until, place=place)
        start = parse_instant("since", since) if since is not None else 0
        end = parse_instant("until", until) if until is not None else queries.now_ns() + 1
        return await queries.probe_changes.page(machine_id, start, end, requested)

    @delete(
        "/machines/{machine_id:str}",
        summary="Retire a machine: it is no longer expected; nothing is deleted",
        description="`machine_id` is the hub's id or a unique name. A later report of the machine reactivates it.",
        status_code=200,
        responses=errors(404, 409),
    )
    async def retire_machine(self, machine_id: FromPath[str], queries: NamedDependency[Queries]) -> MachineRecord:
        """Retire the machine; repeating this only updates the time."""
        return await queries.fleet.retire_machine(machine_id)

    @get("/nodes", summary="List nodes: GPUs, freshness, newest error", responses=errors())
    async def list_nodes(
        self, queries: NamedDependency[Queries], cluster: Cluster = None, limit: Limit = None, cursor: Cursor = None
    ) -> NodePage:
        """Return a page, sorted by cluster and name."""
        return await queries.fleet.nodes(cluster, parse_page_request(limit, cursor, "nodes", cluster))

    @get(
        "/nodes/gpus",
        summary="List the GPUs of nodes, one entry per node: models, utilisation, power, holders",
        responses=errors(),
    )
    async def list_node_gpus(
        self, queries: NamedDependency[Queries], cluster: Cluster = None, limit: Limit = None, cursor: Cursor = None
    ) -> NodeGpusPage:
        """Return a page, sorted by cluster and name of the node."""
        return await queries.fleet.node_gpus(cluster, parse_page_request(limit, cursor, "node gpus", cluster))

    @get("/gpus", summary="List GPUs, MIG devices and vGPU instances, one entry per view", responses=errors())
    async def list_gpus(
        self,
        queries: NamedDependency[Queries],
        cluster: Cluster = None,
        machine: OfMachine = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> GpuPage:
        """Return a page, sorted by cluster, machine and address; a machine's devices stay on one page."""
        return await queries.fleet.gpus(cluster, machine, parse_page_request(limit, cursor, "gpus", cluster, machine))

    @get(
        "/gpus/{gpu_id:path}",
        summary="Get a GPU",
        description="`gpu_id` is an id (`cluster/machine/kind/uuid`, with its slashes), a UUID or its first characters "
        "(at least four), `machine/pci-address` or `machine/index`; 409 lists the candidates of an ambiguous name.",
        responses=errors(404, 409),
    )
    async def get_gpu(self, gpu_id: FromPath[str], queries: NamedDependency[Queries]) -> GpuRecord:
        """Return a GPU with its newest readings and its earlier locations."""
        found = await queries.fleet.gpu(gpu_id.lstrip("/"))
        return msgspec.structs.replace(found, history=await queries.inventory.history(found))

    @get("/senders", summary="List senders: delay and missing batches", responses=errors())
    async def list_senders(
        self,
        request: Request[Any, Any, Any],
        overview: NamedDependency[Overview],
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[SenderRecord, ...]]:
        """Return a page, sorted by cluster and name."""
        return list_response(
            request, await overview.senders(parse_page_request(limit, cursor, "senders", place=tuple[str, str]))
        )


class ClusterRoutes(Controller):
    """Clusters that the hub serves."""

    path = "/v1/clusters"
    tags = ("clusters",)

    @get(summary="List clusters, including closed ones, with freshness and completeness", responses=errors())
    async def list_clusters(
        self,
        request: Request[Any, Any, Any],
        overview: NamedDependency[Overview],
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[ClusterRecord, ...]]:
        """Return a page, sorted by id."""
        place = parse_page_request(limit, cursor, "clusters", place=tuple[str])
        return list_response(request, cut_page(await overview.clusters(), lambda one: (one.cluster.id,), place))

    @put(
        "/{cluster_id:str}",
        summary="Register or change a cluster",
        description="201 if it was not registered before. The hub then accepts its batches; a closed cluster is "
        "reopened.",
        responses=describe(ClusterRecord, "The cluster was not registered before."),
    )
    async def put_cluster(
        self, cluster_id: FromPath[str], data: JSONBody[ClusterSpec], clusters: NamedDependency[Clusters]
    ) -> Response[ClusterRecord]:
        """Store the cluster."""
        record, is_new = await clusters.put(cluster_id, data)
        return Response(record, status_code=201 if is_new else 200)

    @get("/{cluster_id:str}", summary="Get a cluster with its freshness and completeness", responses=errors(404))
    async def get_cluster(self, cluster_id: FromPath[str], overview: NamedDependency[Overview]) -> ClusterRecord:
        """Return the cluster."""
        return await overview.cluster(cluster_id)

    @get(
        "/{cluster_id:str}/contract",
        summary="Get the report of a cluster by the adoption contract: status of each item, and what is not visible",
        description="Judged after each evaluation of the rules. 404 also for a closed cluster.",
        responses=errors(404),
    )
    async def get_contract_report(
        self, cluster_id: FromPath[str], overview: NamedDependency[Overview]
    ) -> ConformanceReport:
        """Return the newest report."""
        return await overview.contract_report(cluster_id)

    @delete(
        "/{cluster_id:str}",
        summary="Close a cluster: its batches are rejected; nothing is deleted",
        description="409 if the cluster is named in the hub's configuration.",
        status_code=200,
        responses=errors(404, 409),
    )
    async def close_cluster(self, cluster_id: FromPath[str], clusters: NamedDependency[Clusters]) -> ClusterRecord:
        """Close the cluster; repeating this changes nothing."""
        return await clusters.close(cluster_id)


Since = Annotated[str | None, QueryParameter(description="RFC 3339; default: the oldest change.")]
Until = Annotated[str | None, QueryParameter(description="RFC 3339, exclusive; default: now.")]


class InventoryRoutes(Controller):
    """Changes of GPUs, and pools of identical GPUs."""

    path = "/v1/gpus"
    tags = ("fleet",)

    @get(
        "/changes",
        summary="List GPUs that moved to another machine or slot, and slots whose GPU was replaced, newest first",
        description="Based on host reports: passing a GPU through to a virtual machine is not a move.",
        responses=errors(),
    )
    async def list_changes(
        self,
        queries: NamedDependency[Queries],
        cluster: Annotated[str | None, QueryParameter(description="Only GPUs that are in this cluster now.")] = None,
        machine: Annotated[
            str | None, QueryParameter(description="Only entries of this machine, by id or name.")
        ] = None,
        kind: Annotated[ChangeKind | None, QueryParameter(description="Only changes of this kind.")] = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> GpuChangePage:
        """Return a page."""
        place = parse_page_request(limit, cursor, "changes", cluster, machine, kind, since, until, place=InstantPlace)
        return await queries.inventory.changes(
            start=parse_instant("since", since) if since is not None else 0,
            end=parse_instant("until", until) if until is not None else queries.now_ns(),
            cluster=cluster,
            machine=machine,
            kind=kind,
            requested=place,
        )

    @get("/pools", summary="List groups of GPUs with the same name, driver and VBIOS, by cluster", responses=errors())
    async def list_pools(
        self,
        request: Request[Any, Any, Any],
        queries: NamedDependency[Queries],
        cluster: Annotated[str | None, QueryParameter(description="Only entries of this cluster.")] = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[GpuPool, ...]]:
        """Return a page, sorted by cluster, side, name, driver and VBIOS."""
        place = parse_page_request(limit, cursor, "pools", cluster, place=tuple[str, str, str, str, str])
        return list_response(request, cut_page(await queries.inventory.pools(cluster), _key, place))


def _key(pool: GpuPool) -> tuple[str, ...]:
    return pool.cluster, pool.side, pool.name or "", pool.driver or "", pool.vbios or ""
