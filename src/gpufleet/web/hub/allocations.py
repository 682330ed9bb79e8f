"""Routes of allocations."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.paging import cut_page, parse_page_request
from gpufleet.hub.updates.marks import ChangeMarks, allocation_key, allocations_key
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import AllocationAnswer, SeriesAnswer
from gpufleet.web.hub.formats import list_response
from gpufleet.web.hub.openapi import describe, errors
from gpufleet.web.hub.parameters import Cursor, End, Limit, Metrics, Start, Step, parse_window

Tenant = NamedDependency[str | None]
"""Tenant to whose allocations the request is restricted; None for all."""

Rebind = Annotated[
    bool,
    QueryParameter(description="Bind an unchanged target again, from now on; its past stays with the earlier binding."),
]


class AllocationRoutes(Controller):
    """Routes of allocations and their readings."""

    path = "/v1/allocations"
    tags = ("allocations",)

    @get(summary="List allocations, including closed ones; a tenant sees its own", responses=errors())
    async def list_allocations(
        self,
        request: Request[Any, Any, Any],
        queries: NamedDependency[Queries],
        tenant: Tenant,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> Response[tuple[Allocation, ...]]:
        """Return the newest generation of each allocation, sorted by id."""
        place = parse_page_request(limit, cursor, "allocations", tenant, place=tuple[str])
        return list_response(
            request, cut_page(await queries.allocations.list_all(tenant), lambda one: (one.id,), place)
        )

    @put(
        "/{allocation_id:str}",
        summary="Register or change an allocation",
        description="201 if it is new. Repeating a body changes nothing; a different body creates the next generation. "
        "409 if the allocation is closed, or if another tenant has the machine or device at an overlapping time. The "
        "target is bound to the machine and devices that it names now, and stays bound to them if names change later.",
        responses=describe(Allocation, "The allocation is new.", 409),
    )
    async def put_allocation(
        self,
        allocation_id: FromPath[str],
        data: JSONBody[AllocationSpec],
        queries: NamedDependency[Queries],
        marks: NamedDependency[ChangeMarks],
        rebind: Rebind = False,
    ) -> Response[Allocation]:
        """Store the allocation."""
        allocation, is_new = await queries.allocations.put(allocation_id, data, rebind=rebind)
        _note(marks, allocation)
        return Response(allocation, status_code=201 if is_new else 200)

    @get("/{allocation_id:str}", summary="Get an allocation", responses=errors(404))
    async def get_allocation(
        self, allocation_id: FromPath[str], queries: NamedDependency[Queries], tenant: Tenant
    ) -> Allocation:
        """Return the newest generation."""
        return await queries.allocations.get(allocation_id, tenant)

    @delete(
        "/{allocation_id:str}",
        summary="Close an allocation; it is not deleted",
        status_code=200,
        responses=errors(404),
    )
    async def close_allocation(
        self, allocation_id: FromPath[str], queries: NamedDependency[Queries], marks: NamedDependency[ChangeMarks]
    ) -> Allocation:
        """Close the allocation; repeating this changes nothing."""
        allocation = await queries.allocations.close(allocation_id)
        _note(marks, allocation)
        return allocation

    @get("/{allocation_id:str}/metrics", summary="Newest readings of an allocation", responses=errors(404))
    async def allocation_metrics(
        self, allocation_id: FromPath[str], queries: NamedDependency[Queries], tenant: Tenant
    ) -> AllocationAnswer:
        """Return each reading with value or absence reason, provenance, times and age."""
        return await queries.allocations.metrics(allocation_id, tenant)

    @get("/{allocation_id:str}/series", summary="Time series of an allocation", responses=errors(404))
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
        """Return a series per device and metric, within the validity of the allocation."""
        window = parse_window(start, end, step, queries.now_ns())
        return await queries.allocations.series(allocation_id, metric or [], window, tenant)


def _note(marks: ChangeMarks, allocation: Allocation) -> None:
    """Mark a changed allocation for the streams of its tenant and of operators."""
    marks.note(allocation_key(allocation.id), allocations_key(None), allocations_key(allocation.spec.tenant or ""))
