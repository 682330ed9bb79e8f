"""Encoding of remote-write bodies."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import cramjam

from gpufleet.codecs.protobuf import write_bytes, write_varint
from gpufleet.codecs.remote_write.decode import MILLISECOND, STALE
from gpufleet.codecs.remote_write.series_cache import NAME

CONTENT_TYPE_1 = "application/x-protobuf"
CONTENT_TYPE_2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"

_DOUBLE = struct.Struct("<d")
_TYPES = {"counter": 1, "gauge": 2, "histogram": 3, "gaugehistogram": 4, "summary": 5, "info": 6, "stateset": 7}


class WritePoint(NamedTuple):
    """Sample of a series.

    Attributes:
        labels: with the metric name as `__name__`; written sorted, as the format requires.
        value: None is a stale marker: the series has ended.
        at: nanoseconds since 1970; sent in milliseconds.
        type: `counter`, `gauge`, ...; sent in version 2.
    """

    labels: Mapping[str, str]
    value: float | None
    at: int
    type: str = ""


def encode_1(points: Iterable[WritePoint]) -> bytes:
    """Return a body of remote write 1.0."""
    parts = []
    pairs: dict[tuple[str, str], bytes] = {}  # neighbouring series share most labels
    for point in points:
        encoded = []
        for pair in _sorted(point.labels):
            label = pairs.get(pair)
            if label is None:
                name, value = pair
                label = write_bytes(0x0A, write_bytes(0x0A, name.encode()) + write_bytes(0x12, value.encode()))
                pairs[pair] = label
            encoded.append(label)
        labels = b"".join(encoded)
        parts.append(write_bytes(0x0A, labels + write_bytes(0x12, _sample(point))))
    return _compress(parts)


def encode_2(points: Sequence[WritePoint]) -> bytes:
    """Return a body of remote write 2.0."""
    symbols: dict[str, int] = {"": 0}
    parts = []
    for point in points:
        texts = [text for pair in _sorted(point.labels) for text in pair]
        refs = b"".join(write_varint(symbols.setdefault(text, len(symbols))) for text in texts)
        kind = b"\x08" + write_varint(_TYPES[point.type]) if point.type in _TYPES else b""
        metadata = write_bytes(0x2A, kind) if kind else b""
        parts.append(write_bytes(0x2A, write_bytes(0x0A, refs) + write_bytes(0x12, _sample(point)) + metadata))
    return _compress([*(write_bytes(0x22, symbol.encode()) for symbol in symbols), *parts])


def _sorted(labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the labels in the order of the format, without empty ones, which mean no label."""
    if not labels.get(NAME):
        raise ValueError(f"a point without {NAME}")
    return sorted((name, value) for name, value in labels.items() if value)


def _sample(point: WritePoint) -> bytes:
    bits = STALE if point.value is None else _DOUBLE.pack(point.value)
    return b"\x09" + bits + b"\x10" + write_varint(point.at // MILLISECOND)


def _compress(parts: list[bytes]) -> bytes:
    return bytes(cramjam.snappy.compress_raw(b"".join(parts)))
