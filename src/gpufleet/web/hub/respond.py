"""Answering without the framework."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

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
