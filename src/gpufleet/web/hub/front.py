"""The hub's front page: where everything is. It tells nothing about the fleet, so it needs no token.

Routes that watch the hub itself.
"""

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
    ("/v1/nodes", "every node: its GPUs, how fresh it is, its newest error"),
    ("/v1/gpus", "every GPU, as each side sees it"),
    ("/v1/allocations", "what was given to whom"),
    ("/v1/senders", "who posts batches, how late they are, and what is missing of them"),
    ("/v1/clusters", "clusters, and what they should have"),
    ("/openapi.json", "the whole API"),
    ("/metrics", "what the hub counts of itself, for Prometheus"),
    ("/readyz", "whether it works"),
)
"""Path and words of what is linked."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
}

_ROWS = "\n".join(f'<tr><td><a href="{path}">{path}</a></td><td>{escape(words)}</td></tr>' for path, words in LINKS)

PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>gpufleet hub</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 2rem; color-scheme: light dark }}
td {{ padding-right: 1.5rem; vertical-align: top }}</style>
<h1>gpufleet hub</h1>
<table>
{_ROWS}
</table>
<p>Where the hub asks for tokens, each of these takes one: <code>curl -H "Authorization: Bearer $(cat token)"</code>, or
<code>gpufleet query nodes --token-file FILE</code>.</p>
</html>
"""


@get("/", include_in_schema=False, media_type="text/html")
async def front_page() -> Response[str]:
    """Return the page."""
    return Response(PAGE, headers=HEADERS)


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
