"""Native batch format: MessagePack, columnar, optionally zstd. `docs/reference/batch.md` documents the bytes."""

from gpufleet.codecs.batch.codec import (
    CONTENT_TYPE,
    EncodedColumns,
    decode,
    encode,
    encode_wire,
    encode_with_columns,
    renumber,
)
from gpufleet.codecs.batch.columns import to_wire
from gpufleet.codecs.batch.compression import content_bytes
from gpufleet.codecs.batch.limits import Limits
from gpufleet.codecs.batch.rows import to_rows

__all__ = [
    "CONTENT_TYPE",
    "EncodedColumns",
    "Limits",
    "content_bytes",
    "decode",
    "encode",
    "encode_wire",
    "encode_with_columns",
    "renumber",
    "to_rows",
    "to_wire",
]
