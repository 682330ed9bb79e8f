"""Records of decoding: the input, a format, and the result."""

import datetime as dt
from collections.abc import Callable

import msgspec

from gpufleet.model.snapshot import Snapshot

MAX_BYTES = 64 << 20
"""Largest input. Formats have tighter limits of their own."""


class CapturedInput(msgspec.Struct, frozen=True, kw_only=True):
    """Captured bytes with their file name and time.

    Attributes:
        content: the bytes.
        name: name of the file, used if the content does not name the machine.
        at: modification time of the file in nanoseconds since 1970, used if the content has no time.
        timezone: zone of local times that the content prints without one; None if not known.
    """

    content: bytes
    name: str
    at: int
    timezone: dt.tzinfo | None = None


class DecodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of decoding.

    Attributes:
        snapshots: one per machine, in order of appearance.
        notes: messages about dropped values.
        assumptions: statements that the content does not prove; the snapshots state them too.
        unread: name of each deliberately ignored value to the reason.
        unknown: names of values that no table contains.
    """

    snapshots: tuple[Snapshot, ...]
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    unread: dict[str, str] = {}
    unknown: tuple[str, ...] = ()


class CaptureFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A format of captured bytes.

    Attributes:
        name: name on the command line.
        help: short description.
        matches: returns whether content can be of this format, cheaply; always true for content of this format.
        decode: decodes the content; raises WireError if it is not of this format.
    """

    name: str
    help: str
    matches: Callable[[bytes], bool]
    decode: Callable[[CapturedInput], DecodeResult]
