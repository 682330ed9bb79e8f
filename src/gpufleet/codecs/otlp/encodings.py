"""Content encodings of a body, and the limits of a request."""

import zlib
from collections.abc import Callable
from typing import Protocol

import msgspec

from gpufleet.codecs.batch.compression import import_zstandard
from gpufleet.model.errors import WireError, WireLimitError


class OtlpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request. A request over a limit is rejected; attribute limits only reject what has the attributes.

    Attributes:
        body_bytes: size of the body as received.
        message_bytes: size after decompression. An empty message takes two bytes, and about sixty in memory: a hostile
            request of this size can take thirty times as much while it is decoded.
        json_bytes: size of a JSON message, which takes ten times as long to decode as protobuf.
        points: number of data points or log records of one request.
        attributes: number per resource, point or record; a Kubernetes node as a series has more than a hundred.
        name_bytes, value_bytes: size of an attribute's name and value, a metric's name, a record's text. A resource
            only loses the attribute that is too long.
    """

    body_bytes: int = 8 << 20
    message_bytes: int = 8 << 20
    json_bytes: int = 4 << 20
    points: int = 200_000
    attributes: int = 256
    name_bytes: int = 256
    value_bytes: int = 4 << 10


_GZIP_STEP, _ZSTD_STEP = 4 << 10, 256
"""Input bytes per decompression step. A step yields at most 8 MiB: deflate expands a byte to at most 1032, and a zstd
block of four bytes to at most 128 KiB."""


class _Decompressor(Protocol):
    """Common interface of the zlib and zstandard decompressors."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def unpack(body: bytes, encoding: str, limits: OtlpLimits | None = None) -> bytes:
    """Decompress a body with the given Content-Encoding: `gzip`, `zstd`, or empty or `identity` for none.

    A body may have several concatenated streams, as both formats allow (RFC 1952, 2.2; RFC 8878, 3); the message is
    their joined content. `x-gzip` is `gzip` (RFC 9110, 8.4.1.3).

    Raises:
        WireLimitError: if the body, or its content, is too large; at most one step over the limit is unpacked.
        WireError: if a stream is invalid or incomplete, or the encoding is not supported.
    """
    limits = limits or OtlpLimits()
    if len(body) > limits.body_bytes:
        raise WireLimitError("body", f"{len(body)} bytes, more than {limits.body_bytes}")
    match encoding:
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            try:
                return _unpacked(body, lambda: zlib.decompressobj(wbits=31), _GZIP_STEP, limits.message_bytes)
            except zlib.error as error:
                raise WireError("body", f"not a gzip stream: {error}") from None
        case "zstd":
            zstandard = import_zstandard()
            try:
                begin = zstandard.ZstdDecompressor().decompressobj
                return _unpacked(body, begin, _ZSTD_STEP, limits.message_bytes)
            except zstandard.ZstdError as error:
                raise WireError("body", f"not a zstd frame: {error}") from None
    raise WireError("content-encoding", f"{encoding!r}: use gzip, zstd or none")


def _unpacked(body: bytes, begin: Callable[[], _Decompressor], step: int, most: int) -> bytes:
    message = bytearray()
    at = 0
    while at < len(body) or not at:
        stream = begin()
        while not stream.eof:
            part = body[at : at + step]
            if not part:
                raise WireError("body", "truncated gzip or zstd stream")
            message += stream.decompress(part)
            at += len(part)
            if len(message) > most:
                raise WireLimitError("body", f"more than {most} bytes after decompression")
        at -= len(stream.unused_data)
    return bytes(message)
