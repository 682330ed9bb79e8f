"""Content encodings of a body, undone within bounds.

What a request may cost its receiver.
"""

import zlib
from collections.abc import Callable
from typing import Protocol

import msgspec

from gpufleet.codecs.batch.compression import import_zstandard
from gpufleet.model.errors import WireError, WireLimitError


class OtlpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one request. Passing one of them refuses the request; those of attributes cost only what has them.

    Attributes:
        body_bytes: as it came.
        message_bytes: after decompression. Empty messages take two bytes there and about sixty in memory, so a hostile
            request of this size can take thirty times as much while it is read.
        json_bytes: of a message in JSON, which takes ten times as long to read as protobuf.
        points: data points or log records of one request.
        attributes: of one resource, point or record; a Kubernetes node as a series has more than a hundred.
        name_bytes, value_bytes: of an attribute's name and value, a metric's name, a record's text. A resource loses an
            attribute that passes them, and nothing else.
    """

    body_bytes: int = 8 << 20
    message_bytes: int = 8 << 20
    json_bytes: int = 4 << 20
    points: int = 200_000
    attributes: int = 256
    name_bytes: int = 256
    value_bytes: int = 4 << 10


_GZIP_STEP, _ZSTD_STEP = 4 << 10, 256
"""Bytes that are unpacked at once. Neither comes to more than 8 MiB: deflate makes of each byte 1032 at most, and a
block of zstd, of 128 KiB at most, has four bytes."""


class _Stream(Protocol):
    """What both packages have."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def unpack(body: bytes, encoding: str, limits: OtlpLimits | None = None) -> bytes:
    """Return the message in a body of that Content-Encoding: `gzip`, `zstd`, or empty or `identity` for none.

    A body may have several streams one after the other, as both formats allow (RFC 1952, 2.2; RFC 8878, 3): the
    message is what they hold together. `x-gzip` is `gzip` (RFC 9110, 8.4.1.3).

    Raises:
        WireLimitError: if the body, or what it unpacks to, is too large; not much more than the bound is ever unpacked.
        WireError: if it is not whole streams of it, or of another encoding.
    """
    limits = limits or OtlpLimits()
    if len(body) > limits.body_bytes:
        raise WireLimitError("body", f"{len(body)} bytes, of {limits.body_bytes} allowed")
    match encoding:
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            try:
                return _unpacked(body, lambda: zlib.decompressobj(wbits=31), _GZIP_STEP, limits.message_bytes)
            except zlib.error as error:
                raise WireError("body", f"no gzip stream: {error}") from None
        case "zstd":
            zstandard = import_zstandard()
            try:
                begin = zstandard.ZstdDecompressor().decompressobj
                return _unpacked(body, begin, _ZSTD_STEP, limits.message_bytes)
            except zstandard.ZstdError as error:
                raise WireError("body", f"no zstd frame: {error}") from None
    raise WireError("content-encoding", f"{encoding!r}: write gzip, zstd or nothing")


def _unpacked(body: bytes, begin: Callable[[], _Stream], step: int, most: int) -> bytes:
    message = bytearray()
    at = 0
    while at < len(body) or not at:
        stream = begin()
        while not stream.eof:
            part = body[at : at + step]
            if not part:
                raise WireError("body", "it ends inside a stream of gzip or zstd")
            message += stream.decompress(part)
            at += len(part)
            if len(message) > most:
                raise WireLimitError("body", f"more than {most} bytes after decompression")
        at -= len(stream.unused_data)
    return bytes(message)
