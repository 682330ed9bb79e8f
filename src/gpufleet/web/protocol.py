"""HTTP/1.1 protocol of a connection: uvicorn's httptools parser with size and time limits."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpufleet.web.connections import ConnectionSlot

HEAD_BYTES = 16 << 10
"""Limit on a request line with its headers, and on the framing bytes of a body. Beyond it the connection is closed."""

HEAD_SECONDS = 15.0
"""Timeout of the TLS handshake, and of a request head. The connection is then closed."""

LINGER_SECONDS = 2.0
"""Time to discard the rest of a body after an early response, so that the client can read the response."""

STALL_SECONDS = 30.0
"""Interval in which a client has to read at least `STALL_BYTES` of its response; otherwise it is aborted."""

STALL_BYTES = 64 << 10

PIPELINED = 32
"""Maximum number of pipelined requests behind the one being answered."""

LOG_SECONDS = 10.0
"""Minimum interval between log lines of one kind about clients, so that they cannot fill the disk."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class RateLimitFilter(logging.Filter):
    """Log filter that passes all errors, and each kind of warning at most once per interval."""

    def __init__(self, monotonic: Callable[[], float], seconds: float = LOG_SECONDS) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._seconds = seconds
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        if record.levelno >= logging.ERROR:
            return True
        now = self._monotonic()
        if now < self._next.get(record.msg, now):
            return False
        self._next[record.msg] = now + self._seconds
        return True


class ProtocolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a server.

    Attributes:
        body_seconds: timeout of a request body; the connection is then closed.
        logger: for messages about clients.
        stall_seconds: see `STALL_SECONDS`.
    """

    body_seconds: float
    logger: logging.Logger
    stall_seconds: float = STALL_SECONDS


class _LimitExceededError(Exception):
    """A request head or the pipeline exceeds its limit."""


class BoundedProtocol(HttpToolsProtocol):
    """Protocol of one connection. Its state is: in a head, in a body, or between two messages."""

    def __init__(self, slot: ConnectionSlot, limits: ProtocolLimits, **more: Any) -> None:
        super().__init__(**more)
        self.logger = limits.logger
        self._slot = slot
        self._limits = limits
        self._between, self._in_head, self._ending = True, False, False
        self._head_size = 0
        self._head_bytes = self._body_bytes = self._framing_bytes = 0  # bytes on the wire, an upper bound
        self._messages = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head."""
        super().connection_made(transport)
        self._slot.handshake_done(transport.abort)
        self._expect(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._slot.closed()
        self._expect(None)
        self._watch_writing(None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and check limits and timers."""
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
            # A message has begun, or the bytes are no message: these do not keep the connection open.
            self._expect(self._limits.body_seconds if self._in_body else HEAD_SECONDS)

    @property
    def _in_body(self) -> bool:
        return not (self._between or self._in_head)

    def _is_too_large(self) -> bool:
        if self._in_body:
            return self._framing_bytes > HEAD_BYTES + self._body_bytes
        return self._head_bytes > HEAD_BYTES

    def on_message_begin(self) -> None:
        """Enter the head of a request."""
        super().on_message_begin()
        self._messages += 1
        self._head_size = 0
        self._between, self._in_head = False, True

    def on_url(self, url: bytes) -> None:
        """Receive a part of the request target."""
        self._measure(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header; trailers are ignored."""
        if self._in_head:
            self._measure(len(name) + len(value) + 4)
            super().on_header(name, value)

    def _measure(self, more: int) -> None:
        self._head_size += more
        if self._head_size > HEAD_BYTES:
            raise _LimitExceededError

    def on_headers_complete(self) -> None:
        """Start to answer the request."""
        if len(self.pipeline) >= PIPELINED:
            raise _LimitExceededError
        self._in_head = False
        self._head_bytes = self._body_bytes = self._framing_bytes = 0
        self._expect(None)
        self._slot.busy()
        super().on_headers_complete()
        self.cycle.transport = _LingeringTransport(self)  # type: ignore[assignment]  # has every method that a cycle uses

    def on_body(self, body: bytes) -> None:
        """Receive a part of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next request unless the connection is ending."""
        self._between = True
        self._expect(None)
        super().on_message_complete()
        if self._ending:
            self._close()

    def on_response_complete(self) -> None:
        """Continue with the next request, or discard the rest of this one."""
        if self._ending:
            self.flow.resume_reading()  # to receive the end of the message
        else:
            super().on_response_complete()
            if self._in_body:
                self._expect(LINGER_SECONDS)
        self._rest()

    def _rest(self) -> None:
        """Mark the connection idle once all requests are answered and the responses are read, except a small rest."""
        if not self.pipeline and self.cycle.response_complete and self._stalled is None:
            self._slot.idle()

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP with 400, or to a head that is too large with 431."""
        if self._head_size > HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
        else:
            super().send_400_response(msg)
        self._close()

    def _unsupported_upgrade_warning(self) -> None:
        """Do nothing: an upgrade request is answered as if it had no `Upgrade` header."""

    def pause_writing(self) -> None:
        """Start to watch whether the client reads its responses."""
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop watching: the client has read most of its responses."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._watch_writing(None)
            self._rest()

    def end(self) -> None:
        """Close once the rest of the message is discarded, or after `LINGER_SECONDS`."""
        self._ending = True
        if self._in_body:
            self._expect(LINGER_SECONDS)
        else:
            self._close()

    def _close(self) -> None:
        """Close the connection; unread responses are bounded by the stall timer."""
        self.transport.close()
        if self._stalled is None:
            self._watch_writing(self.transport.get_write_buffer_size())

    def _expect(self, seconds: float | None) -> None:
        """Set the deadline of the client, in seconds from now; None cancels it."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._close)

    def _watch_writing(self, size: int | None) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        seconds = self._limits.stall_seconds
        self._stalled = None if size is None else self.loop.call_later(seconds, self._check_writing, size)

    def _check_writing(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left > before - STALL_BYTES:
            self.transport.abort()
        else:
            self._watch_writing(left)


class _LingeringTransport:
    """Transport for one response: closing it first discards the rest of the request."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self.is_closing = protocol.transport.is_closing

    def write(self, data: bytes) -> None:
        if not self.is_closing():  # a later request may have ended the connection
            self._protocol.transport.write(data)

    def close(self) -> None:
        self._protocol.end()
