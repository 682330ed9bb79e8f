"""Looking into a spool without owning it: nothing is locked, cut off or written."""

from pathlib import Path

import msgspec

from gpufleet.spool import acknowledgements
from gpufleet.spool.record import scan_segment, seed_of, unpack_segment_header
from gpufleet.spool.recovery import SUFFIX


class Look(msgspec.Struct, frozen=True):
    """What waits in a spool: records, the size of their bodies in bytes, and the oldest body (None for none)."""

    records: int
    size: int
    oldest: bytes | None


def look(folder: Path) -> Look:
    """Read every segment, as opening would; beside a running owner the answer is of a moment ago, more or less.

    Raises:
        OSError: if a file cannot be read.
    """
    records, size, oldest = 0, 0, None
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # its owner has just deleted it: everything in it was acknowledged
        header = unpack_segment_header(data)
        if header is None:
            continue
        seed = seed_of(header.epoch)
        gone = set(acknowledgements.load(path, seed))
        scan = scan_segment(data, seed, header.first_seq)
        for seq, offset, length in zip(scan.seqs, scan.offsets, scan.lengths, strict=True):
            if seq in gone:
                continue
            records, size = records + 1, size + length
            if oldest is None:
                oldest = data[offset : offset + length]
    return Look(records, size, oldest)
