"""ASGI application of the hub: the API, by Litestar, and the ingestion endpoints and the web page, which bypass it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from litestar import Litestar, Request, get
from litestar.di import Provide

from gpufleet.hub.captures import CaptureArchive
from gpufleet.hub.query import Queries
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.status import HubStatus
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.hub.receive.credentials import UnauthenticatedError
from gpufleet.hub.updates.marks import ChangeMarks
from gpufleet.model.access import Principal
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.web.hub import parameters
from gpufleet.web.hub.access import ACCESS, Authenticator, ForbiddenError, respond_unauthenticated
from gpufleet.web.hub.allocations import AllocationRoutes
from gpufleet.web.hub.audit import AuditRecorder, AuditRoutes
from gpufleet.web.hub.benchmarks import BenchmarkRoutes
from gpufleet.web.hub.callers import CallerRoutes
from gpufleet.web.hub.errors import HANDLERS
from gpufleet.web.hub.events import EventRoutes
from gpufleet.web.hub.findings import FindingRoutes, SilenceRoutes
from gpufleet.web.hub.fleet import ClusterRoutes, FleetRoutes, InventoryRoutes
from gpufleet.web.hub.formats import FormattedResponse
from gpufleet.web.hub.holders import HolderRoutes
from gpufleet.web.hub.http import PathMethods, Receive, Scope, Send, as_get, respond
from gpufleet.web.hub.index import HealthRoutes, front_page
from gpufleet.web.hub.openapi import CONFIG, with_msgspec_schemas
from gpufleet.web.hub.updates import UpdateRoutes
from gpufleet.web.hub.usage import SqlRoutes, UsageRoutes
from gpufleet.web.page.files import PageFiles

MAX_REQUEST_BYTES = 1 << 20
"""Maximum request body of the API; ingestion endpoints have their own limits."""

METHODS = PathMethods(ACCESS)

IngestEndpoint = Callable[[Scope, Receive, Send, str | None], Awaitable[None]]
"""Ingestion endpoint. The last argument is the cluster that the token is bound to, or None."""


class HubApp:
    """ASGI application of a hub."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        endpoints: Mapping[str, IngestEndpoint],
        api: Litestar,
        recorder: AuditRecorder,
        page: PageFiles,
    ) -> None:
        """Set the ingestion `endpoints` by path, the files of the page, and the API for every other path."""
        self._authenticator = authenticator
        self._endpoints = endpoints
        self._api = api
        self._recorder = recorder
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        scope = as_get(scope)
        if self._page.serves(scope["path"]):
            await self._page(scope, receive, send)
            return
        try:
            principal = self._authenticator.authenticate(scope)
        except UnauthenticatedError as error:
            await respond_unauthenticated(send, error)
            return
        if await METHODS.respond_if_unsupported(scope, send):
            return
        scope["auth"] = principal
        endpoint = self._endpoints.get(scope["path"]) if scope["method"] == "POST" else None
        if endpoint is None:
            receive, send = self._recorder.wrap(scope, receive, send, principal)
            await self._api(scope, receive, send)  # type: ignore[arg-type]  # Litestar's names for the same ASGI types
            return
        try:
            self._authenticator.check("POST", scope["path"], principal, scope)
        except ForbiddenError as error:
            answer = ErrorAnswer(error="forbidden", detail=str(error))
            await respond(send, 403, answer, [(b"connection", b"close")])
            return
        await endpoint(scope, receive, send, principal.cluster)


@get("/openapi.json", include_in_schema=False)
async def openapi_document(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Return the OpenAPI document, which excludes the ingestion endpoints."""
    return with_msgspec_schemas(request.app.openapi_schema.to_schema())


def tenant_of(request: Request[Any, Principal, Any]) -> str | None:
    """Return the tenant to whose allocations the request is restricted, or None."""
    return request.auth.tenant


def build_api(
    authenticator: Authenticator,
    queries: Queries,
    overview: Overview,
    clusters: Clusters,
    recorder: AuditRecorder,
    status: HubStatus,
    marks: ChangeMarks,
    archive: CaptureArchive,
) -> Litestar:
    """Build the API without the ingestion endpoints."""
    return Litestar(
        route_handlers=[
            AllocationRoutes,
            ClusterRoutes,
            FleetRoutes,
            BenchmarkRoutes,
            InventoryRoutes,
            HolderRoutes,
            EventRoutes,
            FindingRoutes,
            SilenceRoutes,
            UsageRoutes,
            SqlRoutes,
            AuditRoutes,
            CallerRoutes,
            UpdateRoutes,
            HealthRoutes,
            openapi_document,
            front_page,
        ],
        guards=[authenticator.guard, parameters.reject_unknown_parameters],
        dependencies={
            "queries": Provide(lambda: queries, sync_to_thread=False),
            "overview": Provide(lambda: overview, sync_to_thread=False),
            "clusters": Provide(lambda: clusters, sync_to_thread=False),
            "recorder": Provide(lambda: recorder, sync_to_thread=False),
            "status": Provide(lambda: status, sync_to_thread=False),
            "archive": Provide(lambda: archive, sync_to_thread=False),
            "marks": Provide(lambda: marks, sync_to_thread=False),
            "authenticator": Provide(lambda: authenticator, sync_to_thread=False),
            "tenant": Provide(tenant_of, sync_to_thread=False),
        },
        exception_handlers=HANDLERS,
        response_class=FormattedResponse,
        request_max_body_size=MAX_REQUEST_BYTES,
        logging_config=None,
        openapi_config=CONFIG,
    )
