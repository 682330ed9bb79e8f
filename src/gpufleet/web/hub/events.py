"""The route of what happened."""

from typing import Annotated

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.history import QuestionError
from gpufleet.hub.query.paging import asked
from gpufleet.model.api.answer import EventsAnswer
from gpufleet.model.time import NANOS
from gpufleet.web.hub.allocations import Tenant
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import InstantPlace, gpu_key, instant

DEFAULT_SPAN = 24 * 3600 * NANOS

Kinds = Annotated[
    list[str] | None, QueryParameter(name="kind", description="Only of this kind, such as xid; repeat it for more.")
]
Codes = Annotated[
    list[int] | None, QueryParameter(name="code", description="Only of this code, such as an XID; repeat it for more.")
]
View = Annotated[
    str | None, QueryParameter(description="Only of this device, by its key; `machine` for the machines' own.")
]
Gpu = Annotated[str | None, QueryParameter(description="Only of this GPU, by UUID or PCI address.")]
Since = Annotated[str | None, QueryParameter(description="RFC 3339; a day before `until` unless given.")]
Until = Annotated[str | None, QueryParameter(description="RFC 3339, excluded; now unless given.")]
Limit = Annotated[int, QueryParameter(description="Most events of a page, at most 1000.", ge=1, le=1000)]


class Events(Controller):
    """Events of machines and devices."""

    path = "/v1/events"
    tags = ("events",)

    @get(
        summary="What happened, the newest first; to a tenant, what happened to its own devices in its own time",
        description="`next` of an answer is the `cursor` of the page after it.",
        responses=errors(404),
    )
    async def list_events(
        self,
        queries: NamedDependency[Queries],
        tenant: Tenant,
        cluster: Annotated[str | None, QueryParameter(description="Only of this cluster.")] = None,
        machine: Annotated[str | None, QueryParameter(description="Only of this machine, by id or name.")] = None,
        view: View = None,
        gpu: Gpu = None,
        kind: Kinds = None,
        code: Codes = None,
        allocation: Annotated[str | None, QueryParameter(description="Only what its holder may see.")] = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = 100,
        cursor: Annotated[str | None, QueryParameter(description="`next` of the page before.")] = None,
    ) -> EventsAnswer:
        """Return a page."""
        if gpu is not None and view is not None:
            raise QuestionError("gpu", "say one of view and gpu: a GPU's view is gpu/UUID")
        if any(not -(2**63) <= one < 2**63 for one in code or ()):
            raise QuestionError("code", "is a number of 64 bits")  # the store would take the rest of it for the code
        wanted = view if gpu is None else gpu_key(gpu)
        place = asked(
            limit,
            cursor,
            "events",
            cluster,
            machine,
            wanted,
            kind,
            code,
            allocation,
            since,
            until,
            tenant,
            place=InstantPlace,
        )
        end = instant("until", until) if until is not None else queries.now_ns()
        return await queries.events.page(
            start=instant("since", since) if since is not None else max(0, end - DEFAULT_SPAN),
            end=end,
            cluster=cluster,
            machine=machine,
            view=wanted,
            kinds=kind or (),
            allocation=allocation,
            codes=code or (),
            asked=place,
            tenant=tenant,
        )
