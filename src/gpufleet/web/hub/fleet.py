"""Routes of what the fleet is made of."""

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from gpufleet.hub.overview import Overview
from gpufleet.hub.paging import asked
from gpufleet.hub.queries import Queries
from gpufleet.model.answer import (
    GpuPage,
    GpuRecord,
    MachinePage,
    MachineRecord,
    NodePage,
    ProcessesAnswer,
    SenderRecord,
)
from gpufleet.model.fleet import FleetAnswer
from gpufleet.web.hub.formats import listed
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import Cursor, Limit, instant

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
