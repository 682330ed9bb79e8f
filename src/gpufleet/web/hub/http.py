"""Answering without the framework.

Reading the body of a request that brings data, within bounds.

Which methods a path has (RFC 9110): HEAD is answered as GET is, without the body; OPTIONS and 405 name them all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

from gpufleet.hub.receive.limits import Pressure
from gpufleet.model.api.answer import ErrorAnswer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_ENCODER = msgspec.json.Encoder()


async def respond(send: Send, status: int, answer: msgspec.Struct, more: Headers | None = None) -> None:
    """Send one JSON answer, with more headers than its own where given."""
    body = _ENCODER.encode(answer)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers + (more or [])})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> list[str]:
    """Return every value of a header; the name in lower case."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


class RefusedError(Exception):
    """The request is answered with an error; raised and caught by an endpoint alone."""

    def __init__(self, status: int, error: str, detail: str, field: str = "") -> None:
        self.status = status
        self.answer = ErrorAnswer(error=error, detail=detail, field=field)
        super().__init__(detail)


class GoneError(Exception):
    """The client went away before its body was complete; nobody is there to answer."""


class Body:
    """Reads one body, holding its bytes against the bound of all bodies."""

    def __init__(self, pressure: Pressure, limit: int) -> None:
        self._pressure = pressure
        self._limit = limit
        self._held = 0

    def expect(self, content_length: str) -> None:
        """Refuse early what says that it will be too large."""
        if content_length.isascii() and content_length.isdigit() and int(content_length[:19]) > self._limit:
            raise self._too_large()

    async def read_whole(self, scope: Scope, receive: Receive, seconds: float) -> bytes:
        """Return the whole body of a request, if it comes in time.

        Raises:
            RefusedError: if it is too large, too slow, or too much is on its way.
            GoneError: if the client went away.
        """
        self.expect(next(iter(header(scope, b"content-length")), ""))
        try:
            async with asyncio.timeout(seconds):
                return await self.read(receive)
        except TimeoutError as error:
            raise RefusedError(408, "slow_body", f"the body did not arrive within {seconds:g} s") from error

    async def read(self, receive: Receive) -> bytes:
        """Return the whole body."""
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            chunk: bytes = message.get("body", b"")
            if self._held + len(chunk) > self._limit:
                raise self._too_large()
            if not self._pressure.take(len(chunk)):
                raise RefusedError(503, "overloaded", "too much is on its way to the disk: send it again later")
            self._held += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def close(self) -> None:
        """Let go of what was held."""
        self._pressure.give_back(self._held)
        self._held = 0

    def _too_large(self) -> RefusedError:
        return RefusedError(413, "too_large", f"a body may have {self._limit} bytes: send smaller batches")


ORDER = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


class Methods:
    """The methods of every path."""

    def __init__(self, routes: Iterable[tuple[str, str]]) -> None:
        """Take methods and paths; a part of a path in braces stands for any text."""
        found: dict[str, set[str]] = {}
        for method, path in routes:
            found.setdefault(path, {"OPTIONS"}).update({method, "HEAD"} if method == "GET" else {method})
        self._paths = {path: tuple(sorted(methods, key=ORDER.index)) for path, methods in found.items()}
        self._patterns = [(path.split("/"), methods) for path, methods in self._paths.items() if "{" in path]

    def of(self, path: str) -> tuple[str, ...]:
        """Return the methods of a path; none where there is nothing."""
        known = self._paths.get(path)
        if known is not None:
            return known
        parts = path.split("/")
        for pattern, methods in self._patterns:
            if len(pattern) == len(parts) and all(map(_matches, pattern, parts)):
                return methods
        return ()

    async def answered(self, scope: Scope, send: Send) -> bool:
        """Answer what is asked by OPTIONS, or by a method that the path has not; return whether it was so."""
        methods = self.of(scope["path"])
        if not methods or (scope["method"] in methods and scope["method"] != "OPTIONS"):
            return False
        allow = (b"allow", ", ".join(methods).encode())
        if scope["method"] == "OPTIONS":
            await send({"type": "http.response.start", "status": 204, "headers": [allow]})
            await send({"type": "http.response.body", "body": b""})
        else:
            words = f"{scope['path']} is asked by {' or '.join(methods)}"
            await respond(send, 405, ErrorAnswer(error="method_not_allowed", detail=words), [allow])
        return True


def as_get(scope: Scope) -> Scope:
    """Return a request by HEAD as the GET that it is answered as; the server leaves the body out of the answer."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _matches(pattern: str, part: str) -> bool:
    return pattern == part or (pattern.startswith("{") and bool(part))
