"""The hub's application: the API by Litestar, and beside it the endpoint that takes batches."""

from typing import Any

from litestar import Litestar, Request, get
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig

from gpufleet import __version__
from gpufleet.hub.queries import Queries
from gpufleet.hub.status import HubStatus
from gpufleet.web.hub.allocations import Allocations
from gpufleet.web.hub.errors import HANDLERS
from gpufleet.web.hub.fleet import Fleet
from gpufleet.web.hub.health import Health
from gpufleet.web.hub.ingest import BatchEndpoint, Receive, Scope, Send

BATCHES = "/v1/batches"
"""Where batches are posted."""

MAX_QUESTION_BYTES = 1 << 20
"""Of a request's body anywhere else."""


class HubApp:
    """The ASGI application of a hub."""

    def __init__(self, *, endpoint: BatchEndpoint, queries: Queries, status: HubStatus) -> None:
        self._endpoint = endpoint
        self._api = build_api(queries, status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["path"] == BATCHES:
            await self._endpoint(scope, receive, send)
        else:
            await self._api(scope, receive, send)  # type: ignore[arg-type]  # its own names for the same ASGI types


@get("/openapi.json", include_in_schema=False)
async def openapi_document(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of everything but the batches."""
    return request.app.openapi_schema.to_schema()


def build_api(queries: Queries, status: HubStatus) -> Litestar:
    """Build everything but the batches."""
    return Litestar(
        route_handlers=[Allocations, Fleet, Health, openapi_document],
        dependencies={
            "queries": Provide(lambda: queries, sync_to_thread=False),
            "status": Provide(lambda: status, sync_to_thread=False),
        },
        exception_handlers=HANDLERS,
        request_max_body_size=MAX_QUESTION_BYTES,
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="gpufleet",
            version=__version__,
            description="Truthful GPU telemetry: allocations, machines, GPUs, senders. "
            "Batches are posted to /v1/batches in a format of their own.",
            path="/openapi",
        ),
    )
