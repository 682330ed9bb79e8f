"""Route of the audit log."""

from typing import Annotated

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpufleet.model.access import AuditRecord
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.recording import Recorder

Before = Annotated[int | None, QueryParameter(description="Only entries of lower numbers than this.", ge=0, le=2**62)]
Limit = Annotated[int, QueryParameter(description="At most this many.", ge=1, le=1000)]


class AuditRoutes(Controller):
    """Who wrote what."""

    path = "/v1/audit"
    tags = ("hub",)

    @get(summary="What was written, and by whom, newest first", responses=errors())
    async def list_audit(
        self, recorder: NamedDependency[Recorder], before: Before = None, limit: Limit = 100
    ) -> tuple[AuditRecord, ...]:
        """Return one page; the next one is `before` the last number of this."""
        return await recorder.newest(before, limit)
