"""HTTP on one connection: uvicorn's fast parser, with bounds on everything that a client may take its time for."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpufleet.web.connections import Place

HEAD_BYTES = 16 << 10
"""A request line with its headers, or what frames a body beside it, may not be longer: the connection is closed."""

HEAD_SECONDS = 15.0
"""A connection that does not end its TLS handshake, or send a whole head, in this time is closed."""

LINGER_SECONDS = 2.0
"""How long the rest of a body is passed over that was answered before its end, so that the answer is read."""

STALL_SECONDS = 30.0
"""An answer of which a client takes less than `STALL_BYTES` in this time is given up."""

STALL_BYTES = 64 << 10

PIPELINED = 32
"""Requests that a connection may have waiting behind the one that is answered."""

LOG_SECONDS = 10.0
"""At most one line of a kind about clients in this time: they must not fill the disk."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Sparse(logging.Filter):
    """Passes errors, and of each warning one in a while."""

    def __init__(self, monotonic: Callable[[], float], seconds: float = LOG_SECONDS) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._seconds = seconds
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether the record is to be logged."""
        if record.levelno >= logging.ERROR:
            return True
        now = self._monotonic()
        if now < self._next.get(record.msg, now):
            return False
        self._next[record.msg] = now + self._seconds
        return True


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from server to server.

    Attributes:
        body_seconds: a body that takes longer to arrive ends its connection.
        logger: takes what is said of clients.
        stall_seconds: in which a client has to take `STALL_BYTES` of its answer.
    """

    body_seconds: float
    logger: logging.Logger
    stall_seconds: float = STALL_SECONDS


class _TooManyError(Exception):
    """More was asked at once than is answered."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A message is in its head, in its body, or between itself and the next."""

    def __init__(self, place: Place, bounds: Bounds, **more: Any) -> None:
        super().__init__(**more)
        self.logger = bounds.logger
        self._place = place
        self._bounds = bounds
        self._between, self._in_head, self._ending = True, False, False
        self._head_size = 0
        self._head_bytes = self._body_bytes = self._framing_bytes = 0  # as they came, more than they are at times
        self._messages = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._place.greeted(transport.abort)
        self._expect(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._place.gone()
        self._expect(None)
        self._watch_writing(None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and judge what it took and what it leaves to wait for."""
        if self.transport.is_closing() or (self._ending and self._between):
            return
        between, in_body, messages, body_bytes = self._between, self._in_body, self._messages, self._body_bytes
        if not in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if in_body and self._in_body and messages == self._messages:
            self._framing_bytes += len(data) - (self._body_bytes - body_bytes)
        if self._is_too_large():
            self.transport.write(_TOO_LARGE)
            self._close()
        elif self._deadline is None and (not self._between or (between and messages == self._messages)):
            # A message is begun, or something came that is none: it does not keep the connection.
            self._expect(self._bounds.body_seconds if self._in_body else HEAD_SECONDS)

    @property
    def _in_body(self) -> bool:
        return not (self._between or self._in_head)

    def _is_too_large(self) -> bool:
        if self._in_body:
            return self._framing_bytes > HEAD_BYTES + self._body_bytes
        return self._head_bytes > HEAD_BYTES

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        super().on_message_begin()
        self._messages += 1
        self._head_size = 0
        self._between, self._in_head = False, True

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._measure(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of the head; those after a body are passed over."""
        if self._in_head:
            self._measure(len(name) + len(value) + 4)
            super().on_header(name, value)

    def _measure(self, more: int) -> None:
        self._head_size += more
        if self._head_size > HEAD_BYTES:
            raise _TooManyError

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        if len(self.pipeline) >= PIPELINED:
            raise _TooManyError
        self._in_head = False
        self._head_bytes = self._body_bytes = self._framing_bytes = 0
        self._expect(None)
        self._place.busy()
        super().on_headers_complete()
        self.cycle.transport = _Lingering(self)  # type: ignore[assignment]  # all that a cycle uses of one

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next message, if there is to be one."""
        self._between = True
        self._expect(None)
        super().on_message_complete()
        if self._ending:
            self._close()

    def on_response_complete(self) -> None:
        """Go on to the next request, or to the end of this one."""
        if self._ending:
            self.flow.resume_reading()  # so that the end of the message is seen
        else:
            super().on_response_complete()
            if self._in_body:
                self._expect(LINGER_SECONDS)
        self._rest()

    def _rest(self) -> None:
        """Give the place free once everything that was asked is answered, and taken but for a little."""
        if not self.pipeline and self.cycle.response_complete and self._stalled is None:
            self._place.idle()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or too much of it."""
        if self._head_size > HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
        else:
            super().send_400_response(msg)
        self._close()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: the request is answered as one that asks for no other protocol."""

    def pause_writing(self) -> None:
        """Begin to watch whether the client takes its answers."""
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has taken most of them."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._watch_writing(None)
            self._rest()

    def end(self) -> None:
        """Close once the rest of the message was passed over, or has not come in time."""
        self._ending = True
        if self._in_body:
            self._expect(LINGER_SECONDS)
        else:
            self._close()

    def _close(self) -> None:
        """Close; what was written is not waited for forever."""
        self.transport.close()
        if self._stalled is None:
            self._watch_writing(self.transport.get_write_buffer_size())

    def _expect(self, seconds: float | None) -> None:
        """Give the client so long from now on for what it has begun; None where nothing is awaited of it."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._close)

    def _watch_writing(self, size: int | None) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        seconds = self._bounds.stall_seconds
        self._stalled = None if size is None else self.loop.call_later(seconds, self._look_at_writing, size)

    def _look_at_writing(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left > before - STALL_BYTES:
            self.transport.abort()
        else:
            self._watch_writing(left)


class _Lingering:
    """A connection as one answer sees it: closing waits for the rest of the question."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.is_closing = protocol.transport.is_closing

    def write(self, data: bytes) -> None:
        if not self.is_closing():  # what followed this question may have ended the connection
            self._protocol.transport.write(data)

    def close(self) -> None:
        self._protocol.end()
