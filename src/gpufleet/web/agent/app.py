"""A bare ASGI application over what the agent has prepared."""

import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import msgspec

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.errors import ConfigError
from gpufleet.model.snapshot import Snapshot

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
METRICS = b"text/plain; version=0.0.4; charset=utf-8"

INDEX = b"""gpufleet agent

/metrics      Prometheus text
/v1/snapshot  everything known of this machine, as JSON
/healthz      200 while the process lives
/readyz       200 once every reader has ended its first pass
"""


OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no token: they tell nothing of devices or tenants."""


class Prepared(Protocol):
    """What the application serves."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest document."""
        ...

    @property
    def metrics_page(self) -> bytes:
        """The newest page."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """What has not ended its first pass."""
        ...


Answer = tuple[int, bytes, bytes]
"""Status, content type, body."""


class AgentApp:
    """Answers GET and HEAD; reads no request body."""

    def __init__(self, prepared: Prepared, token: Callable[[], str] | None = None) -> None:
        """Take what is served, and what gives the token to ask for now; raises ConfigError where it has none."""
        self._prepared = prepared
        self._token = token
        self._trouble = ""
        self._document: tuple[Snapshot, bytes] | None = None
        self._routes: dict[str, Callable[[], Answer]] = {
            "/": lambda: (200, TEXT, INDEX),
            "/metrics": lambda: (200, METRICS, self._prepared.metrics_page),
            "/healthz": lambda: (200, TEXT, b"ok\n"),
            "/readyz": self._ready,
            "/v1/snapshot": self._snapshot,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        (status, content_type, body), headers = self._answer(scope)
        headers += [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, scope: Scope) -> tuple[Answer, list[tuple[bytes, bytes]]]:
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return _error(405, "only GET and HEAD are answered"), [(b"allow", b"GET, HEAD")]
        if self._token is not None and path not in OPEN:
            refused = self._refusal(self._token, scope)
            if refused is not None:
                return refused, [(b"www-authenticate", b'Bearer realm="gpufleet"')] if refused[0] == 401 else []
        route = self._routes.get(path)
        return route() if route else _error(404, "there is nothing at this path"), []

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
        return _error(401, "this agent asks for its token: Authorization: Bearer ...")

    def _ready(self) -> Answer:
        missing = self._prepared.missing
        document = {"ready": not missing, "missing": missing}
        return (503 if missing else 200), JSON, msgspec.json.encode(document)

    def _snapshot(self) -> Answer:
        # Encoded when somebody asks, once for each document.
        snapshot = self._prepared.snapshot
        if self._document is None or self._document[0] is not snapshot:
            self._document = (snapshot, encode_snapshot(snapshot))
        return 200, JSON, self._document[1]


def _error(status: int, detail: str) -> Answer:
    return status, JSON, msgspec.json.encode({"status": status, "detail": detail})
