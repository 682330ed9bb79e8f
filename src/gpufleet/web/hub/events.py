"""Route of events."""

from typing import Annotated

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.paging import parse_page_request
from gpufleet.model.api.answer import EventsAnswer
from gpufleet.model.time import NANOS
from gpufleet.web.hub.allocations import Tenant
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import InstantPlace, gpu_view_key, parse_instant

DEFAULT_SPAN = 24 * 3600 * NANOS

Kinds = Annotated[
    list[str] | None, QueryParameter(name="kind", description="Only events of this kind, such as xid; may be repeated.")
]
Codes = Annotated[
    list[int] | None,
    QueryParameter(name="code", description="Only events with this code, such as an XID; may be repeated."),
]
View = Annotated[
    str | None, QueryParameter(description="Only events of this device, by view key; `machine` for events of machines.")
]
Gpu = Annotated[str | None, QueryParameter(description="Only events of this GPU, by UUID or PCI address.")]
Since = Annotated[str | None, QueryParameter(description="RFC 3339; default: one day before `until`.")]
Until = Annotated[str | None, QueryParameter(description="RFC 3339, exclusive; default: now.")]
Limit = Annotated[int, QueryParameter(description="Maximum events per page; at most 1000.", ge=1, le=1000)]


class EventRoutes(Controller):
    """EventRoutes of machines and devices."""

    path = "/v1/events"
    tags = ("events",)

    @get(
        summary="List events, newest first; a tenant sees those of its devices during its allocations",
        description="Pass `next` of an answer as `cursor` to get the next page.",
        responses=errors(404),
    )
    async def list_events(
        self,
        queries: NamedDependency[Queries],
        tenant: Tenant,
        cluster: Annotated[str | None, QueryParameter(description="Only events of this cluster.")] = None,
        machine: Annotated[
            str | None, QueryParameter(description="Only events of this machine, by id or name.")
        ] = None,
        view: View = None,
        gpu: Gpu = None,
        kind: Kinds = None,
        code: Codes = None,
        allocation: Annotated[
            str | None, QueryParameter(description="Only events visible to the holder of this allocation.")
        ] = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = 100,
        cursor: Annotated[str | None, QueryParameter(description="`next` of the previous page.")] = None,
    ) -> EventsAnswer:
        """Return a page."""
        if gpu is not None and view is not None:
            raise InvalidQueryError("gpu", "conflicts with view: set one of them; the view of a GPU is gpu/UUID")
        if any(not -(2**63) <= one < 2**63 for one in code or ()):
            raise InvalidQueryError("code", "must be a signed 64-bit integer")  # the store would truncate it
        view_key = view if gpu is None else gpu_view_key(gpu)
        place = parse_page_request(
            limit,
            cursor,
            "events",
            cluster,
            machine,
            view_key,
            kind,
            code,
            allocation,
            since,
            until,
            tenant,
            place=InstantPlace,
        )
        end = parse_instant("until", until) if until is not None else queries.now_ns()
        return await queries.events.page(
            start=parse_instant("since", since) if since is not None else max(0, end - DEFAULT_SPAN),
            end=end,
            cluster=cluster,
            machine=machine,
            view=view_key,
            kinds=kind or (),
            allocation=allocation,
            codes=code or (),
            requested=place,
            tenant=tenant,
        )
