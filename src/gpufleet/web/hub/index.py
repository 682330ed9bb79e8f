"""Index page of the hub, which reveals nothing about the fleet and needs no token; health and metrics routes."""

from html import escape

from litestar import Controller, Response, get
from litestar.di import NamedDependency

from gpufleet.hub.query import Queries
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.status import HubStatus
from gpufleet.web.hub.errors import DegradedError
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.selfmetrics import CONTENT_TYPE, render

LINKS = (
    ("/v1/nodes", "nodes with their GPUs, freshness and newest error"),
    ("/v1/gpus", "GPUs, one entry per view"),
    ("/v1/holders", "pods, jobs and virtual machines that have GPUs"),
    ("/v1/allocations", "allocations and their tenants"),
    ("/v1/senders", "senders with their delay and missing batches"),
    ("/v1/clusters", "clusters with their expected GPUs"),
    ("/openapi.json", "description of the API"),
    ("/metrics", "metrics of the hub for Prometheus"),
    ("/readyz", "readiness of the hub"),
)
"""Path and description of each link."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
}

_ROWS = "\n".join(f'<tr><td><a href="{path}">{path}</a></td><td>{escape(text)}</td></tr>' for path, text in LINKS)

PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>gpufleet hub</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 2rem; color-scheme: light dark }}
td {{ padding-right: 1.5rem; vertical-align: top }}</style>
<h1>gpufleet hub</h1>
<p><a href="ui/">Web page</a></p>
<table>
{_ROWS}
</table>
<p>If the hub requires tokens, send one with each request: <code>curl -H "Authorization: Bearer $(cat token)"</code> or
<code>gpufleet query nodes --token-file FILE</code>.</p>
</html>
"""


@get("/", include_in_schema=False, media_type="text/html")
async def front_page() -> Response[str]:
    """Return the index page."""
    return Response(PAGE, headers=HEADERS)


class HealthRoutes(Controller):
    """HealthRoutes, readiness and metrics of the hub."""

    path = "/"
    tags = ("hub",)

    @get("/healthz", summary="Check that the process responds", security=[{}])
    async def healthz(self) -> dict[str, str]:
        """Return 200 while the event loop runs."""
        return {"status": "ok"}

    @get("/readyz", summary="Check that registry and store respond, and that flushing works", responses=errors())
    async def readyz(self, queries: NamedDependency[Queries], status: NamedDependency[HubStatus]) -> dict[str, str]:
        """Return 503 with the error of the failed dependency, also if it does not respond within some seconds."""
        await queries.readiness.check()
        if status.consecutive_flush_failures:
            raise DegradedError(
                f"{status.consecutive_flush_failures} consecutive flushes failed; batches are queued in the log"
            )
        return {"status": "ready"}

    @get("/metrics", summary="Metrics of the hub", media_type=CONTENT_TYPE, responses=errors())
    async def metrics(self, status: NamedDependency[HubStatus], overview: NamedDependency[Overview]) -> bytes:
        """Return the metrics page."""
        return render(status, await overview.sender_states(), await overview.ingest_state())
