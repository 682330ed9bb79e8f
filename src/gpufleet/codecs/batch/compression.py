"""Optional zstd compression of the message. The package zstandard comes with the `agent` and `hub` extras."""

import functools
import threading
from types import ModuleType
from typing import Any

from gpufleet.codecs.batch.limits import Limits
from gpufleet.model.errors import WireError, WireLimitError

MAGIC = b"\x28\xb5\x2f\xfd"
"""First bytes of a zstd frame (RFC 8878, 3.1.1); no MessagePack array starts with 0x28."""

_LARGEST_MESSAGE = Limits().message_bytes

LEVEL = 1
"""Measured on batches of 8 and of 1,000 GPUs: level 3 takes 1.3 to 2.2 times as long and saves 4 %."""


def compress(message: bytes) -> bytes:
    """Return one zstd frame that declares its content size.

    Raises:
        WireError: if the zstandard package is not installed.
    """
    zstandard = import_zstandard()
    frame: bytes = zstandard.ZstdCompressor(level=LEVEL).compress(message)
    return frame


def decompress(body: bytes, limit: int, decompressor: Any = None) -> bytes:
    """Return the content of one zstd frame; `decompressor` is one of zstandard with a dictionary, if the body needs it.

    Raises:
        WireLimitError: if the content is larger than `limit` bytes; at most that much is unpacked.
        WireError: if the body is not exactly one whole frame, or the zstandard package is not installed.
    """
    zstandard = import_zstandard()
    try:
        declared = zstandard.get_frame_parameters(body).content_size
        if declared != zstandard.CONTENTSIZE_UNKNOWN and declared > limit:
            raise WireLimitError("", f"unpacks to {declared} bytes, more than {limit}")
        unpack = (decompressor or _decompressor()).decompress
        message: bytes = unpack(body, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError("", f"not one whole zstd frame of at most {limit} bytes: {error}") from error
    except MemoryError as error:
        raise WireLimitError("", "not enough memory to unpack it") from error
    return message


def content_bytes(body: bytes) -> int:
    """Return the message size of a body from its frame header alone; the limit of a message if the header has no size.

    An uncompressed body, and one with a damaged frame header, counts with its own length.

    Raises:
        WireError: if the zstandard package is not installed.
    """
    if not body.startswith(MAGIC):
        return len(body)
    zstandard = import_zstandard()
    try:
        declared: int = zstandard.get_frame_parameters(body).content_size
    except zstandard.ZstdError:
        return len(body)
    return _LARGEST_MESSAGE if declared == zstandard.CONTENTSIZE_UNKNOWN else declared


_LOCAL = threading.local()


def _decompressor() -> Any:
    """Return the decompressor of this thread: creating its 128 KiB of tables costs more than a small batch."""
    found = getattr(_LOCAL, "decompressor", None)
    if found is None:
        found = _LOCAL.decompressor = import_zstandard().ZstdDecompressor()
    return found


@functools.cache
def import_zstandard() -> ModuleType:
    """Return the package zstandard.

    Raises:
        WireError: if it is not installed.
    """
    try:
        import zstandard
    except ImportError as error:
        raise WireError(
            "", "zstd needs the package zstandard: install gpufleet[agent], gpufleet[hub] or gpufleet[top]"
        ) from error
    return zstandard
