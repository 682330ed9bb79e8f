"""Native batch format: MessagePack, columnar, optionally zstd. `docs/reference/batch.md` documents the bytes."""

from gpufleet.codecs.batch.codec import (
    CONTENT_TYPE,
    decode,
    encode,
    encode_wire,
    renumber,
    weigh,
)
from gpufleet.codecs.batch.columns import to_wire
from gpufleet.codecs.batch.limits import Limits
from gpufleet.codecs.batch.rows import to_rows

__all__ = [
    "CONTENT_TYPE",
    "Limits",
    "decode",
    "encode",
    "encode_wire",
    "renumber",
    "to_rows",
    "to_wire",
    "weigh",
]
