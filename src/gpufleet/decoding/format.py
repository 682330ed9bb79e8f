"""What a format is, and what decoding gives."""

from collections.abc import Callable

import msgspec

from gpufleet.model.snapshot import Snapshot

MAX_BYTES = 64 << 20
"""Of anything that is decoded; each format has narrower bounds of its own."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, and what is known of them beside.

    Attributes:
        content: the bytes.
        name: of the file, for machines that do not say their own.
        at: nanoseconds since 1970 when the file was written, for outputs that do not say when they were printed.
    """

    content: bytes
    name: str
    at: int


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        snapshots: one a machine, in the order in which they were met.
        notes: words about what was dropped or assumed.
        unread: name of each value that is left alone on purpose, to why.
        unknown: names of values that no table here has.
    """

    snapshots: tuple[Snapshot, ...]
    notes: tuple[str, ...] = ()
    unread: dict[str, str] = {}
    unknown: tuple[str, ...] = ()


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format.

    Attributes:
        name: on the command line.
        help: what it is, in a few words.
        fits: tells by the first bytes whether content can be of this format; cheap, and never wrong about its own.
        decode: raises WireError if the content is not of this format after all.
    """

    name: str
    help: str
    fits: Callable[[bytes], bool]
    decode: Callable[[Source], Decoded]
