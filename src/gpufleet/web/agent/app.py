"""ASGI application of the agent, which serves prepared pages."""

import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, Protocol

import msgspec

from gpufleet.agent.publish.pages import PageForm
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.exporters.exposition import PageFormat
from gpufleet.model.errors import ConfigError
from gpufleet.model.snapshot import Snapshot
from gpufleet.web.agent.negotiation import accepts_gzip, choose_syntax
from gpufleet.web.query_string import ParameterError, parse_query_string

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"

INDEX = b"""gpufleet agent

/metrics      Prometheus text, or OpenMetrics if requested by Accept
/v1/snapshot  snapshot of this machine as JSON
/healthz      200 while the process runs
/readyz       200 once every reader has finished its first pass
"""


OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no token: they reveal nothing about devices or tenants."""


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


Headers = list[tuple[bytes, bytes]]


class AgentResponse(NamedTuple):
    """HTTP response: status, content type, body and further headers."""

    status: int
    content_type: bytes
    body: bytes
    headers: Headers = []  # noqa: RUF012 - never modified


class AgentApp:
    """Agent endpoints. They answer GET and HEAD, and read no request body."""

    def __init__(self, prepared: PreparedPages, token: Callable[[], str] | None = None) -> None:
        """Create the application.

        Args:
            prepared: content to serve.
            token: returns the current token, or raises ConfigError if it cannot be read. None disables authentication.
        """
        self._prepared = prepared
        self._token = token
        self._last_error = ""
        self._document: tuple[Snapshot, bytes] | None = None
        self._routes: dict[str, Callable[[Scope], Awaitable[AgentResponse]]] = {
            "/": self._index,
            "/metrics": self._metrics,
            "/healthz": self._alive,
            "/readyz": self._ready,
            "/v1/snapshot": self._snapshot,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """AgentResponse a request."""
        if scope["type"] != "http":
            return
        answer = await self._answer(scope)
        headers = [
            *answer.headers,
            (b"content-type", answer.content_type),
            (b"content-length", str(len(answer.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})

    async def _answer(self, scope: Scope) -> AgentResponse:
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return _error_response(405, "use GET or HEAD", (b"allow", b"GET, HEAD"))
        if self._token is not None and path not in OPEN:
            refused = self._refusal(self._token, scope)
            if refused is not None:
                return refused
        route = self._routes.get(path)
        return await route(scope) if route else _error_response(404, "no such path")

    def _refusal(self, token: Callable[[], str], scope: Scope) -> AgentResponse | None:
        try:
            expected = token()
        except ConfigError as error:
            if str(error) != self._last_error:
                log.error("all requests are rejected: %s", error)
            self._last_error = str(error)
            return _error_response(503, "the agent cannot read its token: see its log")
        self._last_error = ""
        presented = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, given = presented[0].partition(b" ") if len(presented) == 1 else (b"", b"", b"")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), expected.encode()):
            return None
        detail = "this agent requires a token: send Authorization: Bearer TOKEN"
        return _error_response(401, detail, (b"www-authenticate", b'Bearer realm="gpufleet"'))

    async def _index(self, _: Scope) -> AgentResponse:
        return AgentResponse(200, TEXT, INDEX)

    async def _alive(self, _: Scope) -> AgentResponse:
        return AgentResponse(200, TEXT, b"ok\n")

    async def _ready(self, _: Scope) -> AgentResponse:
        missing = self._prepared.missing
        document = {"ready": not missing, "missing": missing}
        return AgentResponse(503 if missing else 200, JSON, msgspec.json.encode(document))

    async def _metrics(self, scope: Scope) -> AgentResponse:
        choice = choose_syntax(_header(scope, b"accept"))
        gzip = accepts_gzip(_header(scope, b"accept-encoding"))
        page = await self._prepared.page(PageForm(openmetrics=choice.syntax is PageFormat.OPENMETRICS, gzip=gzip))
        headers = [(b"vary", b"Accept, Accept-Encoding"), *([(b"content-encoding", b"gzip")] if gzip else [])]
        return AgentResponse(200, choice.content_type.encode(), page, headers)

    async def _snapshot(self, scope: Scope) -> AgentResponse:
        try:
            parse_query_string(scope["query_string"], scope["path"], {})
        except ParameterError as error:
            return _error_response(400, str(error))
        # Encoded on request, once per snapshot.
        snapshot = await self._prepared.snapshot()
        if self._document is None or self._document[0] is not snapshot:
            self._document = (snapshot, encode_snapshot(snapshot))
        return AgentResponse(200, JSON, self._document[1])


def _header(scope: Scope, name: bytes) -> str:
    """Return a header; headers of one name are joined to a list (RFC 9110, section 5.3)."""
    return ",".join([value.decode("latin-1") for known, value in scope["headers"] if known == name])


def _error_response(status: int, detail: str, *headers: tuple[bytes, bytes]) -> AgentResponse:
    return AgentResponse(status, JSON, msgspec.json.encode({"status": status, "detail": detail}), list(headers))
