"""Routes that watch the hub itself."""

from litestar import Controller, get
from litestar.di import NamedDependency

from gpufleet.hub.overview import Overview
from gpufleet.hub.queries import Queries
from gpufleet.hub.status import HubStatus
from gpufleet.web.hub.errors import DegradedError
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.selfmetrics import CONTENT_TYPE, render


class Health(Controller):
    """Whether the hub works, and what it counts of itself."""

    path = "/"
    tags = ("hub",)

    @get("/healthz", summary="The process answers", security=[{}])
    async def healthz(self) -> dict[str, str]:
        """Say that the event loop turns."""
        return {"status": "ok"}

    @get("/readyz", summary="Registry and store answer, and the flusher gets through", responses=errors())
    async def readyz(self, queries: NamedDependency[Queries], status: NamedDependency[HubStatus]) -> dict[str, str]:
        """Ask them; 503 with the words of who does not, and where nothing is said for some seconds."""
        await queries.readiness.check()
        if status.flush_failures_in_a_row:
            words = f"{status.flush_failures_in_a_row} flushes in a row failed; batches wait in the log"
            raise DegradedError(words)
        return {"status": "ready"}

    @get("/metrics", summary="The hub's own metrics", media_type=CONTENT_TYPE, responses=errors())
    async def metrics(self, status: NamedDependency[HubStatus], overview: NamedDependency[Overview]) -> bytes:
        """Return the Prometheus page."""
        return render(status, await overview.sender_states(), await overview.hearing())
