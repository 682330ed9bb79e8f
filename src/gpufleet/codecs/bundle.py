"""Several bodies in one post, each with its own answer. `docs/reference/batch.md` documents the bytes."""

import re
import struct
from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.model.errors import WireError, WireLimitError

BUNDLE_CONTENT_TYPE = "application/vnd.gpufleet.bundle"

LENGTH_BYTES = 4
"""What stands before each body."""

MAX_BODIES = 1024
"""In one bundle."""

WAITED_HEADER = "Gpufleet-Waited"
"""How long each body of a post waited at relays."""

_LENGTH = struct.Struct("<I")
_WAITED = re.compile(r"[0-9]{1,12}(,[0-9]{1,12})*", re.ASCII)
_MILLISECOND_NS = 10**6


class BodyAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one body of a bundle.

    Attributes:
        status: the HTTP status that it would have had alone.
        result: `accepted` or `duplicate`, where that is 200.
        seq: of the batch, where that is 200.
        error, detail, field: as in an `ErrorAnswer`, otherwise.
        retry_after: seconds after which to post it again, where the status asks for that.
    """

    status: int
    result: str = ""
    seq: int | None = None
    error: str = ""
    detail: str = ""
    field: str = ""
    retry_after: float | None = None


class BundleAnswer(msgspec.Struct, frozen=True):
    """The answer to a bundle: one entry a body, in their order."""

    answers: list[BodyAnswer]


def pack(bodies: Iterable[bytes]) -> bytes:
    """Return a bundle."""
    parts: list[bytes] = []
    for body in bodies:
        parts += (_LENGTH.pack(len(body)), body)
    return b"".join(parts)


def render_waited(waited: Iterable[int]) -> str:
    """Return the header's value for nanoseconds that each body of a post waited; no less than they did."""
    return ",".join(str(-(-one // _MILLISECOND_NS)) for one in waited)


def parse_waited(text: str, count: int) -> Sequence[int]:
    """Return the nanoseconds that each body of a post waited.

    Raises:
        WireError: if the header's value is not a number of milliseconds for each of so many bodies.
    """
    if not _WAITED.fullmatch(text):
        raise WireError(WAITED_HEADER, f"{text[:60]!r}: write milliseconds, a whole number a body, with commas between")
    waited = [int(one) * _MILLISECOND_NS for one in text.split(",")]
    if len(waited) != count:
        raise WireError(WAITED_HEADER, f"{len(waited)} numbers, and {count} bodies")
    return waited


def unpack(content: bytes) -> list[bytes]:
    """Return the bodies of a bundle.

    Raises:
        WireLimitError: if it has more than `MAX_BODIES`.
        WireError: if it is empty, or its lengths do not add up to it.
    """
    bodies: list[bytes] = []
    at = 0
    while at < len(content):
        if len(bodies) == MAX_BODIES:
            raise WireLimitError("bundle", f"more than {MAX_BODIES} bodies")
        field = f"bundle[{len(bodies)}]"
        if len(content) - at < LENGTH_BYTES:
            raise WireError(field, f"{len(content) - at} bytes left, and a length takes {LENGTH_BYTES}")
        (length,) = _LENGTH.unpack_from(content, at)
        at += LENGTH_BYTES
        if length > len(content) - at:
            raise WireError(field, f"{length} bytes said, {len(content) - at} left")
        bodies.append(content[at : at + length])
        at += length
    if not bodies:
        raise WireError("bundle", "no bodies in it")
    return bodies
