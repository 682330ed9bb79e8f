"""HTTP helpers for endpoints outside the framework: responses, bounded request bodies, methods of paths (RFC 9110)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.model.api.answer import ErrorAnswer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_ENCODER = msgspec.json.Encoder()


async def respond(send: Send, status: int, answer: msgspec.Struct, more: Headers | None = None) -> None:
    """Send a JSON response, with `more` headers."""
    body = _ENCODER.encode(answer)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers + (more or [])})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> list[str]:
    """Return all values of a header; `name` is in lower case."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


class RequestRejectedError(Exception):
    """Error response to a request; raised and caught within an endpoint."""

    def __init__(self, status: int, error: str, detail: str, field: str = "") -> None:
        self.status = status
        self.answer = ErrorAnswer(error=error, detail=detail, field=field)
        super().__init__(detail)


class ClientDisconnectedError(Exception):
    """The client disconnected before its body was complete."""


class BoundedBody:
    """Request body with a size limit, whose bytes count towards the budget of all bodies."""

    def __init__(self, pressure: ByteBudget, limit: int) -> None:
        self._pressure = pressure
        self._limit = limit
        self._held = 0

    def expect(self, content_length: str) -> None:
        """Raise RequestRejectedError if the announced length exceeds the limit."""
        if content_length.isascii() and content_length.isdigit() and int(content_length[:19]) > self._limit:
            raise self._too_large()

    async def read_whole(self, scope: Scope, receive: Receive, seconds: float) -> bytes:
        """Return the body of a request.

        Raises:
            RefusedError: if the body is too large or too slow, or the budget of all bodies is exhausted.
            GoneError: if the client disconnected.
        """
        self.expect(next(iter(header(scope, b"content-length")), ""))
        try:
            async with asyncio.timeout(seconds):
                return await self.read(receive)
        except TimeoutError as error:
            raise RequestRejectedError(408, "slow_body", f"the body did not arrive within {seconds:g} s") from error

    async def read(self, receive: Receive) -> bytes:
        """Return the body, without a time limit."""
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk: bytes = message.get("body", b"")
            if self._held + len(chunk) > self._limit:
                raise self._too_large()
            if not self._pressure.take(len(chunk)):
                raise RequestRejectedError(503, "overloaded", "too many bytes are waiting for the disk: retry later")
            self._held += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def close(self) -> None:
        """Return the held bytes to the budget."""
        self._pressure.release(self._held)
        self._held = 0

    def _too_large(self) -> RequestRejectedError:
        return RequestRejectedError(413, "too_large", f"the body exceeds {self._limit} bytes: send smaller ones")


ORDER = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


class PathMethods:
    """Methods of each path. HEAD is answered like GET without a body; OPTIONS and 405 list all methods."""

    def __init__(self, routes: Iterable[tuple[str, str]]) -> None:
        """Set pairs of method and path; a path segment in braces matches any text."""
        found: dict[str, set[str]] = {}
        for method, path in routes:
            found.setdefault(path, {"OPTIONS"}).update({method, "HEAD"} if method == "GET" else {method})
        self._paths = {path: tuple(sorted(methods, key=ORDER.index)) for path, methods in found.items()}
        self._patterns = [(path.split("/"), methods) for path, methods in self._paths.items() if "{" in path]

    def of(self, path: str) -> tuple[str, ...]:
        """Return the methods of a path; empty if the path does not exist."""
        known = self._paths.get(path)
        if known is not None:
            return known
        parts = path.split("/")
        for pattern, methods in self._patterns:
            if len(pattern) == len(parts) and all(map(_matches, pattern, parts)):
                return methods
        return ()

    async def respond_if_unsupported(self, scope: Scope, send: Send) -> bool:
        """Respond to OPTIONS, and to methods that the path does not have; return whether a response was sent."""
        methods = self.of(scope["path"])
        if not methods or (scope["method"] in methods and scope["method"] != "OPTIONS"):
            return False
        allow = (b"allow", ", ".join(methods).encode())
        if scope["method"] == "OPTIONS":
            await send({"type": "http.response.start", "status": 204, "headers": [allow]})
            await send({"type": "http.response.body", "body": b""})
        else:
            detail = f"{scope['path']}: use {' or '.join(methods)}"
            await respond(send, 405, ErrorAnswer(error="method_not_allowed", detail=detail), [allow])
        return True


def as_get(scope: Scope) -> Scope:
    """Convert HEAD to GET; the server omits the body of the response."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _matches(pattern: str, part: str) -> bool:
    return pattern == part or (pattern.startswith("{") and bool(part))
