"""ASGI application of a daemon's operator endpoints: GET and HEAD of prepared content, with an optional token."""

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

import msgspec

from gpufleet.model.errors import ConfigError

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"

OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no token: they reveal nothing about devices or tenants."""

Headers = list[tuple[bytes, bytes]]


class OperatorResponse(NamedTuple):
    """HTTP response: status, content type, body and further headers."""

    status: int
    content_type: bytes
    body: bytes
    headers: Headers = []  # noqa: RUF012 - never modified


Route = Callable[[Scope], Awaitable[OperatorResponse]]


class OperatorApp:
    """Endpoints of a daemon. They answer GET and HEAD, and read no request body.

    Args:
        daemon: name of the daemon, for messages.
        routes: path to its handler.
        token: returns the current token, or raises ConfigError if it cannot be read. None disables authentication.
    """

    def __init__(self, daemon: str, routes: Mapping[str, Route], token: Callable[[], str] | None) -> None:
        self._daemon = daemon
        self._routes = dict(routes)
        self._token = token
        self._last_error = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
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

    async def _answer(self, scope: Scope) -> OperatorResponse:
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return error_response(405, "use GET or HEAD", (b"allow", b"GET, HEAD"))
        if self._token is not None and path not in OPEN:
            refused = self._refusal(self._token, scope)
            if refused is not None:
                return refused
        route = self._routes.get(path)
        return await route(scope) if route else error_response(404, "no such path")

    def _refusal(self, token: Callable[[], str], scope: Scope) -> OperatorResponse | None:
        try:
            expected = token()
        except ConfigError as error:
            if str(error) != self._last_error:
                log.error("all requests are rejected: %s", error)
            self._last_error = str(error)
            return error_response(503, f"the {self._daemon} cannot read its token: see its log")
        self._last_error = ""
        presented = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, given = presented[0].partition(b" ") if len(presented) == 1 else (b"", b"", b"")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), expected.encode()):
            return None
        detail = f"this {self._daemon} requires a token: send Authorization: Bearer TOKEN"
        return error_response(401, detail, (b"www-authenticate", b'Bearer realm="gpufleet"'))


async def alive(_: Scope) -> OperatorResponse:
    """Answer `/healthz`: the process runs."""
    return OperatorResponse(200, TEXT, b"ok\n")


def readiness(missing: tuple[str, ...]) -> OperatorResponse:
    """Answer `/readyz`: 503 while something is missing."""
    document = {"ready": not missing, "missing": missing}
    return OperatorResponse(503 if missing else 200, JSON, msgspec.json.encode(document))


def header_of(scope: Scope, name: bytes) -> str:
    """Return a header; headers of one name are joined to a list (RFC 9110, section 5.3)."""
    return ",".join([value.decode("latin-1") for known, value in scope["headers"] if known == name])


def error_response(status: int, detail: str, *headers: tuple[bytes, bytes]) -> OperatorResponse:
    """Return a response with an error as JSON."""
    return OperatorResponse(status, JSON, msgspec.json.encode({"status": status, "detail": detail}), list(headers))
