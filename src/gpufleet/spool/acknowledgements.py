"""Which records of a segment were acknowledged: a small file beside it that only grows, and goes with it."""

import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

_ENTRY = struct.Struct("<QI")


def path_beside(segment: Path) -> Path:
    """Return where a segment's acknowledgements are kept."""
    return segment.with_suffix(".acks")


def save(segment: Path, seed: int, seqs: Iterable[int]) -> None:
    """Add numbers; without waiting for the disk, as losing some only shows their records again."""
    with path_beside(segment).open("ab", buffering=0) as file:
        file.write(b"".join(_ENTRY.pack(seq, _checksum(seed, seq)) for seq in seqs))


def load(segment: Path, seed: int) -> list[int]:
    """Return the numbers that were saved whole, up to the first that was not."""
    try:
        data = path_beside(segment).read_bytes()
    except FileNotFoundError:
        return []
    seqs: list[int] = []
    for seq, checksum in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if checksum != _checksum(seed, seq):
            break
        seqs.append(seq)
    return seqs


def rewrite(segment: Path, seed: int, seqs: Sequence[int]) -> None:
    """Keep these numbers and nothing else: a number that is given out again must not be found acknowledged."""
    path = path_beside(segment)
    if path.exists() and path.stat().st_size != len(seqs) * _ENTRY.size:
        path.unlink()
        if seqs:
            save(segment, seed, seqs)


def _checksum(seed: int, seq: int) -> int:
    return zlib.crc32(seq.to_bytes(8, "little"), seed)
