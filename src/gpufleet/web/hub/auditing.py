"""Route of the audit log."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from msgspec import Meta

from gpufleet.hub.paging import Page, asked
from gpufleet.model.access import AuditRecord
from gpufleet.web.hub.formats import listed
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import Cursor
from gpufleet.web.hub.recording import Recorder

Before = Annotated[int | None, QueryParameter(description="Only entries of lower numbers than this.", ge=0, le=2**62)]
Limit = Annotated[int, QueryParameter(description="At most this many.", ge=1, le=1000)]


Place = tuple[Annotated[int, Meta(ge=0, le=2**62)]]
"""Number of an entry."""


class AuditRoutes(Controller):
    """Who wrote what."""

    path = "/v1/audit"
    tags = ("hub",)

    @get(summary="What was written, and by whom, newest first", responses=errors())
    async def list_audit(
        self,
        request: Request[Any, Any, Any],
        recorder: NamedDependency[Recorder],
        before: Before = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response[tuple[AuditRecord, ...]]:
        """Return one page; `before` the last number of this is the next one too."""
        place = asked(limit, cursor, "audit", before, place=Place)
        found = await recorder.newest(place.after[0] if place.after else before, limit + 1)
        items = found[:limit]
        return listed(request, Page(items, place.cursor((items[-1].number,)) if len(found) > limit else None))
