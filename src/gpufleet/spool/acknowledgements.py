"""Acknowledged record numbers of a segment: an append-only file beside it, deleted together with it."""

import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

_ENTRY = struct.Struct("<QI")


def acknowledgement_path(segment: Path) -> Path:
    """Return the path of a segment's acknowledgement file."""
    return segment.with_suffix(".acks")


def save(segment: Path, seed: int, seqs: Iterable[int]) -> None:
    """Append numbers without sync: losing some only causes their records to be read again."""
    with acknowledgement_path(segment).open("ab", buffering=0) as file:
        file.write(b"".join(_ENTRY.pack(seq, _checksum(seed, seq)) for seq in seqs))


def load(segment: Path, seed: int) -> list[int]:
    """Return the saved numbers up to the first damaged entry."""
    try:
        data = acknowledgement_path(segment).read_bytes()
    except FileNotFoundError:
        return []
    seqs: list[int] = []
    for seq, checksum in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if checksum != _checksum(seed, seq):
            break
        seqs.append(seq)
    return seqs


def rewrite(segment: Path, seed: int, seqs: Sequence[int]) -> None:
    """Reduce the file to these numbers, so that a number that is assigned again is not found acknowledged."""
    path = acknowledgement_path(segment)
    if path.exists() and path.stat().st_size != len(seqs) * _ENTRY.size:
        path.unlink()
        if seqs:
            save(segment, seed, seqs)


def _checksum(seed: int, seq: int) -> int:
    return zlib.crc32(seq.to_bytes(8, "little"), seed)
