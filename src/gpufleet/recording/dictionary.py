"""Compression of a document with an earlier one as the dictionary: successive documents differ little."""

from typing import Any

from gpufleet.codecs.batch.compression import import_zstandard

LEVEL = 3
"""Measured on documents of 8 GPUs, 467 kB each: 4.2 kB in 2.3 ms. Level 1 takes 1.2 ms and 14 kB; 21 kB without a
dictionary."""


def keyed_compressor(key: bytes) -> Any:
    """Return a compressor of zstandard with a document as its dictionary. Raises WireError without zstandard."""
    zstandard = import_zstandard()
    return zstandard.ZstdCompressor(level=LEVEL, dict_data=_dictionary(zstandard, key))


def keyed_decompressor(key: bytes) -> Any:
    """Return a decompressor of zstandard with a document as its dictionary. Raises WireError without zstandard."""
    zstandard = import_zstandard()
    return zstandard.ZstdDecompressor(dict_data=_dictionary(zstandard, key))


def _dictionary(zstandard: Any, key: bytes) -> Any:
    return zstandard.ZstdCompressionDict(key, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
