"""A bare ASGI application over what the agent has prepared."""

import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, Protocol

import msgspec

from gpufleet.agent.publish.pages import Form
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.exporters.exposition import Syntax
from gpufleet.model.errors import ConfigError
from gpufleet.model.snapshot import Snapshot
from gpufleet.web.agent.negotiation import accepts_gzip, choose_syntax

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"

INDEX = b"""gpufleet agent

/metrics      Prometheus text, or OpenMetrics if you ask for it
/v1/snapshot  everything known of this machine, as JSON
/healthz      200 while the process lives
/readyz       200 once every reader has ended its first pass
"""


OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no token: they tell nothing of devices or tenants."""


class Prepared(Protocol):
    """What the application serves."""

    async def snapshot(self) -> Snapshot:
        """Return the newest document."""
        ...

    async def page(self, form: Form) -> bytes:
        """Return the newest page."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """What has not ended its first pass."""
        ...


Headers = list[tuple[bytes, bytes]]


class Answer(NamedTuple):
    """Status, content type, body, and further headers."""

    status: int
    content_type: bytes
    body: bytes
    headers: Headers = []  # noqa: RUF012 - never changed


class AgentApp:
    """Answers GET and HEAD; reads no request body."""

    def __init__(self, prepared: Prepared, token: Callable[[], str] | None = None) -> None:
        """Take what is served, and what gives the token to ask for now; raises ConfigError where it has none."""
        self._prepared = prepared
        self._token = token
        self._trouble = ""
        self._document: tuple[Snapshot, bytes] | None = None
        self._routes: dict[str, Callable[[Scope], Awaitable[Answer]]] = {
            "/": self._index,
            "/metrics": self._metrics,
            "/healthz": self._alive,
            "/readyz": self._ready,
            "/v1/snapshot": self._snapshot,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
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

    async def _answer(self, scope: Scope) -> Answer:
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return _error(405, "only GET and HEAD are answered", (b"allow", b"GET, HEAD"))
        if self._token is not None and path not in OPEN:
            refused = self._refusal(self._token, scope)
            if refused is not None:
                return refused
        route = self._routes.get(path)
        return await route(scope) if route else _error(404, "there is nothing at this path")

    def _refusal(self, token: Callable[[], str], scope: Scope) -> Answer | None:
        try:
            wanted = token()
        except ConfigError as error:
            if str(error) != self._trouble:
                log.error("nobody is answered: %s", error)
            self._trouble = str(error)
            return _error(503, "the agent has no token to compare with; its log says why")
        self._trouble = ""
        presented = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, given = presented[0].partition(b" ") if len(presented) == 1 else (b"", b"", b"")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), wanted.encode()):
            return None
        words = "this agent asks for its token: Authorization: Bearer ..."
        return _error(401, words, (b"www-authenticate", b'Bearer realm="gpufleet"'))

    async def _index(self, _: Scope) -> Answer:
        return Answer(200, TEXT, INDEX)

    async def _alive(self, _: Scope) -> Answer:
        return Answer(200, TEXT, b"ok\n")

    async def _ready(self, _: Scope) -> Answer:
        missing = self._prepared.missing
        document = {"ready": not missing, "missing": missing}
        return Answer(503 if missing else 200, JSON, msgspec.json.encode(document))

    async def _metrics(self, scope: Scope) -> Answer:
        choice = choose_syntax(_header(scope, b"accept"))
        gzip = accepts_gzip(_header(scope, b"accept-encoding"))
        page = await self._prepared.page(Form(openmetrics=choice.syntax is Syntax.OPENMETRICS, gzip=gzip))
        headers = [(b"vary", b"Accept, Accept-Encoding"), *([(b"content-encoding", b"gzip")] if gzip else [])]
        return Answer(200, choice.content_type.encode(), page, headers)

    async def _snapshot(self, _: Scope) -> Answer:
        # Encoded when somebody asks, once for each document.
        snapshot = await self._prepared.snapshot()
        if self._document is None or self._document[0] is not snapshot:
            self._document = (snapshot, encode_snapshot(snapshot))
        return Answer(200, JSON, self._document[1])


def _header(scope: Scope, name: bytes) -> str:
    """Return a header; several of one name are one list (RFC 9110, section 5.3)."""
    return ",".join([value.decode("latin-1") for known, value in scope["headers"] if known == name])


def _error(status: int, detail: str, *headers: tuple[bytes, bytes]) -> Answer:
    return Answer(status, JSON, msgspec.json.encode({"status": status, "detail": detail}), list(headers))
