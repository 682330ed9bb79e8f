"""Routes of the allocation contract."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.paging import asked, page_of
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import AllocationAnswer, SeriesAnswer
from gpufleet.web.hub.formats import listed
from gpufleet.web.hub.openapi import describe, errors
from gpufleet.web.hub.parameters import Cursor, Limit, asked_window

Metrics = Annotated[
    list[str] | None,
    QueryParameter(name="metric", description="Catalogue name, at least one; repeat it for more."),
]
Start = Annotated[str | None, QueryParameter(description="RFC 3339; an hour before `end` unless given.")]
End = Annotated[str | None, QueryParameter(description="RFC 3339, excluded; now unless given.")]
Tenant = NamedDependency[str | None]
"""The only tenant whose allocations the request may see."""

Step = Annotated[str | None, QueryParameter(description="Such as 60, 15s, 1m, 6h; 60 seconds unless given.")]


class Allocations(Controller):
    """What tenants were given, and what it is doing."""

    path = "/v1/allocations"
    tags = ("allocations",)

    @get(summary="Every allocation, closed ones too; of a tenant, its own", responses=errors())
    async def list_allocations(
        self,
        request: Request[Any, Any, Any],
        queries: NamedDependency[Queries],
        tenant: Tenant,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[Allocation, ...]]:
        """Return the newest generation of each, by id."""
        place = asked(limit, cursor, "allocations", tenant, place=tuple[str])
        return listed(request, page_of(await queries.allocations.list_all(tenant), lambda one: (one.id,), place))

    @put(
        "/{allocation_id:str}",
        summary="Register or change an allocation",
        description="201 when it is new. The same body again changes nothing; another one is the next generation. "
        "409 when it is closed.",
        responses=describe(Allocation, "It is new.", 409),
    )
    async def put_allocation(
        self, allocation_id: FromPath[str], data: JSONBody[AllocationSpec], queries: NamedDependency[Queries]
    ) -> Response[Allocation]:
        """Keep the allocation."""
        allocation, is_new = await queries.allocations.put(allocation_id, data)
        return Response(allocation, status_code=201 if is_new else 200)

    @get("/{allocation_id:str}", summary="An allocation as it is kept", responses=errors(404))
    async def get_allocation(
        self, allocation_id: FromPath[str], queries: NamedDependency[Queries], tenant: Tenant
    ) -> Allocation:
        """Return its newest generation."""
        return await queries.allocations.get(allocation_id, tenant)

    @delete(
        "/{allocation_id:str}",
        summary="Close an allocation; it is never erased",
        status_code=200,
        responses=errors(404),
    )
    async def close_allocation(self, allocation_id: FromPath[str], queries: NamedDependency[Queries]) -> Allocation:
        """Close it; again changes nothing."""
        return await queries.allocations.close(allocation_id)

    @get("/{allocation_id:str}/metrics", summary="What the allocation is doing now", responses=errors(404))
    async def allocation_metrics(
        self, allocation_id: FromPath[str], queries: NamedDependency[Queries], tenant: Tenant
    ) -> AllocationAnswer:
        """Answer with provenance, times, age, and a value or reason for every reading."""
        return await queries.allocations.metrics(allocation_id, tenant)

    @get("/{allocation_id:str}/series", summary="What the allocation did over time", responses=errors(404))
    async def allocation_series(
        self,
        allocation_id: FromPath[str],
        queries: NamedDependency[Queries],
        tenant: Tenant,
        metric: Metrics = None,
        start: Start = None,
        end: End = None,
        step: Step = None,
    ) -> SeriesAnswer:
        """Answer with one series a device and metric, within the allocation's own time."""
        asked = asked_window(start, end, step, queries.now_ns())
        return await queries.allocations.series(allocation_id, metric or [], asked, tenant)
