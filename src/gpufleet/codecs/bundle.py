"""Bundles: several bodies in one request, each with its own result. `docs/reference/batch.md` documents the bytes."""

import re
import struct
from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.model.errors import WireError, WireLimitError

BUNDLE_CONTENT_TYPE = "application/vnd.gpufleet.bundle"

LENGTH_BYTES = 4
"""Size of the length before each body."""

MAX_BODIES = 1024
"""Maximum number of bodies in one bundle."""

WAITED_HEADER = "Gpufleet-Waited"
"""Header with the time that each body of a request was queued at relays."""

_LENGTH = struct.Struct("<I")
_WAITED = re.compile(r"[0-9]{1,12}(,[0-9]{1,12})*", re.ASCII)
_MILLISECOND_NS = 10**6


class BodyAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of one body of a bundle.

    Attributes:
        status: HTTP status that the body would have had alone.
        result: `accepted` or `duplicate` for status 200.
        seq: number of the batch for status 200.
        error, detail, field: as in `ErrorAnswer` for any other status.
        retry_after: seconds until the retry, if the status requests one.
    """

    status: int
    result: str = ""
    seq: int | None = None
    error: str = ""
    detail: str = ""
    field: str = ""
    retry_after: float | None = None


class BundleAnswer(msgspec.Struct, frozen=True):
    """Response to a bundle: one entry per body, in order."""

    answers: list[BodyAnswer]


def pack(bodies: Iterable[bytes]) -> bytes:
    """Return the bundle of bodies."""
    parts: list[bytes] = []
    for body in bodies:
        parts += (_LENGTH.pack(len(body)), body)
    return b"".join(parts)


def render_waited(waited: Iterable[int]) -> str:
    """Return the header value for the queue time of each body in nanoseconds, rounded up to milliseconds."""
    return ",".join(str(-(-time // _MILLISECOND_NS)) for time in waited)


def parse_waited(text: str, count: int) -> Sequence[int]:
    """Return the queue time of each body in nanoseconds.

    Raises:
        WireError: if the header's value is not a number of milliseconds for each of `count` bodies.
    """
    if not _WAITED.fullmatch(text):
        raise WireError(
            WAITED_HEADER, f"{text[:60]!r}: write one whole number of milliseconds per body, separated by commas"
        )
    waited = [int(one) * _MILLISECOND_NS for one in text.split(",")]
    if len(waited) != count:
        raise WireError(WAITED_HEADER, f"{len(waited)} numbers for {count} bodies")
    return waited


def unpack(content: bytes) -> list[bytes]:
    """Return the bodies of a bundle.

    Raises:
        WireLimitError: if it has more than `MAX_BODIES`.
        WireError: if it is empty, or the lengths do not match its size.
    """
    bodies: list[bytes] = []
    at = 0
    while at < len(content):
        if len(bodies) == MAX_BODIES:
            raise WireLimitError("bundle", f"more than {MAX_BODIES} bodies")
        field = f"bundle[{len(bodies)}]"
        if len(content) - at < LENGTH_BYTES:
            raise WireError(field, f"{len(content) - at} bytes left, but a length takes {LENGTH_BYTES}")
        (length,) = _LENGTH.unpack_from(content, at)
        at += LENGTH_BYTES
        if length > len(content) - at:
            raise WireError(field, f"length of {length} bytes, {len(content) - at} left")
        bodies.append(content[at : at + length])
        at += length
    if not bodies:
        raise WireError("bundle", "has no bodies")
    return bodies
