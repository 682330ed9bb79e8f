"""Small bodies that decompress far beyond the limits of a batch."""

from collections.abc import Callable
from typing import Any

import msgspec
import zstandard

from gpufleet.model.wire.batch import WIRE_VERSION
from tests.codecs.batch.batches import NOW


def _many(count: int, element: bytes) -> msgspec.Raw:
    return msgspec.Raw(b"\xdd" + count.to_bytes(4, "big") + element * count)


def _batch(place: int, value: Any) -> bytes:
    elements = [WIRE_VERSION, 1, "c", "s", "0" * 32, 1, NOW, None, [], [], [], [], [], [], None]
    elements[place] = value
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(elements))


def _block(columns: Any) -> list[Any]:
    return ["nvml", "fast", "imported", [], [], [], [], [], [], columns, "-", b""]


def _processes(tables: Any) -> bytes:
    return _batch(13, [[0, [], [], [], None, tables]])


def _table(*lists: Any) -> list[Any]:
    return [0, "nvml", "fast", "imported", 1, 0, 1, [], *lists]


def _packed(*more: Any) -> bytes:
    return _batch(11, [[*_block([])[:3], *more]])


COUNT = 20_000_000
NAMED_BOMBS: dict[str, Callable[[], bytes]] = {
    "zeros": lambda: zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 30)),
    "absence sets": lambda: _batch(10, _many(COUNT, b"\x90")),
    "absences": lambda: _batch(10, [_many(COUNT, b"\x93\xa1a\xa7no_data\xa0"[:3])]),
    "blocks": lambda: _batch(11, _many(COUNT, b"\x90")),
    "columns": lambda: _batch(11, [_block(_many(COUNT, b"\x90"))]),
    "cells": lambda: _batch(11, [_block([_many(COUNT, b"\xa2ab")])]),
    "many columns of cells": lambda: _batch(11, [_block([_many(1000, b"\xa2ab")] * 20_000)]),
    "rows": lambda: _batch(11, [["nvml", "fast", "imported", [], _many(COUNT, b"\xcd\xff\xff")]]),
    "labels": lambda: _batch(12, [["d", "x", "fast", "imported", [], [], [], [], [_many(COUNT, b"\xa2ab")], [], []]]),
    "events": lambda: _batch(13, [[0, _many(COUNT // 8, b"\x83\xa4view\xc0\xa4kind\xa1x\xa2at\x01")]]),
    "attributes": lambda: _batch(
        13,
        [[0, [{"view": None, "kind": "x", "at": 1, "attributes": {f"{n:x}": "" for n in range(2_000_000)}}]]],
    ),
    "process lists": lambda: _processes(_many(COUNT, b"\x90")),
    "processes": lambda: _processes([_table(_many(COUNT, b"\x01"))]),
    "kinds of processes": lambda: _processes([_table([], [], [_many(COUNT, b"\xa1a")])]),
    "columns of processes": lambda: _processes([_table([], [], [], [], [], [_many(COUNT, b"\x01")])]),
    "objects of a cluster": lambda: _batch(14, [NOW, "", "", [], _many(COUNT // 8, b"\x82\xa3uid\xa1x\xa4name\xa1x")]),
    "labels of a node": lambda: _batch(
        14, [NOW, "", "", [], [{"uid": "x", "name": "x", "labels": {f"{n:x}": "" for n in range(2_000_000)}}]]
    ),
    "claims of pods": lambda: _batch(
        14,
        [NOW, "", "", [], [], [{"uid": "x", "namespace": "x", "name": "x", "claims": ["ł" * 2] * 256}] * 4500],
    ),
    "parts": lambda: _batch(13, _many(COUNT, b"\x90")),
    "views": lambda: _batch(9, _many(COUNT // 8, b"\x83\xa4kind\xa3gpu\xa4side\xa4host\xa4uuid\xa1x")),
    "rows of numbers": lambda: _packed(["gpu_power_watts"], *[[0] * 2_000_000] * 5, [], "d", bytes(16_000_000)),
    "numbers": lambda: _packed([f"m{n}" for n in range(1000)], *[[0] * 7_000] * 5, [], "d" * 1000, bytes(56_000_000)),
    "names": lambda: _packed(_many(COUNT, b"\xa1a"), *[[]] * 6, "", b""),
    "deep": lambda: _batch(11, msgspec.Raw(b"\x91" * COUNT)),
}
