"""The hub's application: the API by Litestar, and beside it the endpoints that take data."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from litestar import Litestar, Request, get
from litestar.di import Provide

from gpufleet.hub.query import Queries
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.status import HubStatus
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.hub.receive.credentials import UnauthenticatedError
from gpufleet.model.access import Principal
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.web.hub import parameters
from gpufleet.web.hub.access import ACCESS, Door, ForbiddenError, turn_away
from gpufleet.web.hub.allocations import Allocations
from gpufleet.web.hub.audit import AuditRoutes, Recorder
from gpufleet.web.hub.errors import HANDLERS
from gpufleet.web.hub.events import Events
from gpufleet.web.hub.fleet import ClusterRoutes, Fleet, Inventory
from gpufleet.web.hub.formats import Answered
from gpufleet.web.hub.front import Health, front_page
from gpufleet.web.hub.http import Methods, Receive, Scope, Send, as_get, respond
from gpufleet.web.hub.openapi import CONFIG, exact
from gpufleet.web.hub.usage import SqlRoutes, Usage

MAX_QUESTION_BYTES = 1 << 20
"""Of a request's body anywhere else."""

METHODS = Methods(ACCESS)

Endpoint = Callable[[Scope, Receive, Send, str | None], Awaitable[None]]
"""Takes data as a bare ASGI callable; the last argument is the only cluster that who asks may post for, if any."""


class HubApp:
    """The ASGI application of a hub."""

    def __init__(self, *, door: Door, endpoints: Mapping[str, Endpoint], api: Litestar, recorder: Recorder) -> None:
        """Take what answers: `endpoints` by path, and the API for every other one."""
        self._door = door
        self._endpoints = endpoints
        self._api = api
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        scope = as_get(scope)
        try:
            principal = self._door.admit(scope)
        except UnauthenticatedError as error:
            await turn_away(send, error)
            return
        if await METHODS.answered(scope, send):
            return
        scope["auth"] = principal
        endpoint = self._endpoints.get(scope["path"])
        if endpoint is None:
            receive, send = self._recorder.between(scope, receive, send, principal)
            await self._api(scope, receive, send)  # type: ignore[arg-type]  # its own names for the same ASGI types
            return
        try:
            self._door.check("POST", scope["path"], principal, scope)
        except ForbiddenError as error:
            answer = ErrorAnswer(error="forbidden", detail=str(error))
            await respond(send, 403, answer, [(b"connection", b"close")])
            return
        await endpoint(scope, receive, send, principal.cluster)


@get("/openapi.json", include_in_schema=False)
async def openapi_document(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of everything but the batches."""
    return exact(request.app.openapi_schema.to_schema())


def tenant_of(request: Request[Any, Principal, Any]) -> str | None:
    """Return the only tenant whose allocations the request may see, or None for every one."""
    return request.auth.tenant


def build_api(
    door: Door, queries: Queries, overview: Overview, clusters: Clusters, recorder: Recorder, status: HubStatus
) -> Litestar:
    """Build everything but the batches."""
    return Litestar(
        route_handlers=[
            Allocations,
            ClusterRoutes,
            Fleet,
            Inventory,
            Events,
            Usage,
            SqlRoutes,
            AuditRoutes,
            Health,
            openapi_document,
            front_page,
        ],
        guards=[door.guard, parameters.guard],
        dependencies={
            "queries": Provide(lambda: queries, sync_to_thread=False),
            "overview": Provide(lambda: overview, sync_to_thread=False),
            "clusters": Provide(lambda: clusters, sync_to_thread=False),
            "recorder": Provide(lambda: recorder, sync_to_thread=False),
            "status": Provide(lambda: status, sync_to_thread=False),
            "tenant": Provide(tenant_of, sync_to_thread=False),
        },
        exception_handlers=HANDLERS,
        response_class=Answered,
        request_max_body_size=MAX_QUESTION_BYTES,
        logging_config=None,
        openapi_config=CONFIG,
    )
