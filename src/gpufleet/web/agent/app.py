"""A bare ASGI application over what the agent has prepared."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import msgspec

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.snapshot import Snapshot

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

    def __init__(self, prepared: Prepared) -> None:
        """Take what is served."""
        self._prepared = prepared
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
        method = scope["method"]
        headers: list[tuple[bytes, bytes]] = []
        if method in ("GET", "HEAD"):
            route = self._routes.get(scope["path"])
            status, content_type, body = route() if route else _error(404, "there is nothing at this path")
        else:
            status, content_type, body = _error(405, "only GET and HEAD are answered")
            headers.append((b"allow", b"GET, HEAD"))
        headers += [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

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
