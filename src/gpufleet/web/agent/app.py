"""ASGI application of the agent, which serves prepared pages."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gpufleet.agent.publish.pages import PageForm
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.exporters.exposition import PageFormat
from gpufleet.model.snapshot import Snapshot
from gpufleet.web.agent.negotiation import accepts_gzip, choose_syntax
from gpufleet.web.operator_app import (
    JSON,
    TEXT,
    OperatorApp,
    OperatorResponse,
    Receive,
    Scope,
    Send,
    alive,
    error_response,
    header_of,
    readiness,
)
from gpufleet.web.query_string import ParameterError, parse_query_string

if TYPE_CHECKING:
    from gpufleet.web.page.files import PageFiles

PAGE = "/ui"
"""Path of the web page, without its slash."""

INDEX = b"""gpufleet agent

/metrics      Prometheus text, or OpenMetrics if requested by Accept
/v1/snapshot  snapshot of this machine as JSON
/ui/          web page of this machine
/healthz      200 while the process runs
/readyz       200 once every reader has finished its first pass
"""


class PreparedPages(Protocol):
    """PreparedPages content that the application serves."""

    async def snapshot(self) -> Snapshot:
        """Return the newest snapshot."""
        ...

    async def page(self, form: PageForm) -> bytes:
        """Return the newest metrics page."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """Readers that have not finished their first pass."""
        ...


class AgentApp(OperatorApp):
    """Agent endpoints."""

    def __init__(self, prepared: PreparedPages, token: Callable[[], str] | None = None) -> None:
        """Create the application; see `OperatorApp` for `token`."""
        self._prepared = prepared
        self._document: tuple[Snapshot, bytes] | None = None
        routes = {
            "/": self._index,
            "/metrics": self._metrics,
            "/healthz": alive,
            "/readyz": self._ready,
            "/v1/snapshot": self._snapshot,
        }
        self._requires_token = token is not None
        super().__init__("agent", routes, token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. The files of the page need no token, because they contain nothing about the machine."""
        if scope["type"] == "http" and (scope["path"] == PAGE or scope["path"].startswith(f"{PAGE}/")):
            is_head = scope["method"] == "HEAD"  # the server omits the body
            await self._page_files({**scope, "method": "GET"} if is_head else scope, receive, send)
            return
        await super().__call__(scope, receive, send)

    @functools.cached_property
    def _page_files(self) -> "PageFiles":
        from gpufleet.web.page.files import PageFiles  # takes memory only if the page is used

        return PageFiles(requires_token=self._requires_token, site="agent")

    async def _index(self, _: Scope) -> OperatorResponse:
        return OperatorResponse(200, TEXT, INDEX)

    async def _ready(self, _: Scope) -> OperatorResponse:
        return readiness(self._prepared.missing)

    async def _metrics(self, scope: Scope) -> OperatorResponse:
        choice = choose_syntax(header_of(scope, b"accept"))
        gzip = accepts_gzip(header_of(scope, b"accept-encoding"))
        page = await self._prepared.page(PageForm(openmetrics=choice.syntax is PageFormat.OPENMETRICS, gzip=gzip))
        headers = [(b"vary", b"Accept, Accept-Encoding"), *([(b"content-encoding", b"gzip")] if gzip else [])]
        return OperatorResponse(200, choice.content_type.encode(), page, headers)

    async def _snapshot(self, scope: Scope) -> OperatorResponse:
        try:
            parse_query_string(scope["query_string"], scope["path"], {})
        except ParameterError as error:
            return error_response(400, str(error))
        # Encoded on request, once per snapshot.
        snapshot = await self._prepared.snapshot()
        if self._document is None or self._document[0] is not snapshot:
            self._document = (snapshot, encode_snapshot(snapshot))
        return OperatorResponse(200, JSON, self._document[1])
