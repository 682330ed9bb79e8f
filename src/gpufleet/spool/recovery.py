"""Opening what an earlier process left, whole or not.

Looking into a spool without owning it: nothing is locked, cut off or written.

A spool that was made whole inside another one's folder takes that one's place.
"""

import os
import secrets
import shutil
import time
from itertools import pairwise
from pathlib import Path

import msgspec

from gpufleet.model.errors import SpoolError
from gpufleet.spool import acknowledgements
from gpufleet.spool.folder import load_epoch, save_epoch, sync_folder
from gpufleet.spool.record import SEGMENT_HEADER_BYTES, SegmentHeader, scan_segment, seed_of, unpack_segment_header
from gpufleet.spool.segment import Segment

SUFFIX = ".seg"


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What opening a spool found.

    Attributes:
        records: that still wait.
        torn_bytes: cut off the end of the newest segment, where a crash interrupted a write.
        damaged_bytes: that hold no whole record though they once did.
        lost_records: whose numbers are known to be missing because of damage.
    """

    records: int = 0
    torn_bytes: int = 0
    damaged_bytes: int = 0
    lost_records: int = 0


class Recovered(msgspec.Struct, kw_only=True):
    """A spool's state as found on disk; `intact` tells whether its newest segment can be written on."""

    epoch: str
    segments: list[Segment]
    next_seq: int
    dropped_total: int
    intact: bool
    report: Recovery


class _Found(msgspec.Struct, kw_only=True):
    segment: Segment
    has_header: bool
    torn: bool
    size: int
    lost_records: int
    damaged_bytes: int


def segment_path(folder: Path, first_seq: int) -> Path:
    """Return the file of the segment that begins with this number."""
    return folder / f"{first_seq:020d}{SUFFIX}"


def recover(folder: Path, now: float) -> Recovered:
    """Read every segment, keep every whole record, and cut off what a crash left half written.

    Args:
        folder: the spool's.
        now: the monotonic clock; how old a segment is by now, its file tells.

    Raises:
        SpoolError: if the files are of two different spools.
        OSError: if a file cannot be read.
    """
    paths = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if path.stem.isdigit() and len(path.stem) == 20]
    epoch = _settle_epoch(folder, paths)
    found = [_read(path, epoch, now) for path in paths]
    torn_bytes = _cut_tail(found[-1]) if found else 0
    newest = found[-1] if found else None
    next_seq = max((f.segment.next_seq for f in found), default=1)
    if newest is not None and not newest.torn:
        next_seq += 1
    damaged = sum(f.damaged_bytes for f in found)
    lost = sum(f.lost_records for f in found)
    for before, after in pairwise(found):
        if after.segment.header.previous_seq == before.segment.first_seq:
            lost += max(0, after.segment.first_seq - before.segment.next_seq)
    return Recovered(
        epoch=epoch,
        segments=[f.segment for f in found],
        next_seq=next_seq,
        dropped_total=max((f.segment.header.dropped_total for f in found), default=0),
        intact=newest is not None and newest.has_header and newest.torn,
        report=Recovery(
            records=sum(f.segment.waiting_records for f in found),
            torn_bytes=torn_bytes,
            damaged_bytes=damaged,
            lost_records=lost,
        ),
    )


def _settle_epoch(folder: Path, paths: list[Path]) -> str:
    """Return the spool's epoch: the file's, else the segments', else a new one (always, without segments)."""
    in_segments = set()
    for path in paths:
        with path.open("rb") as file:
            header = unpack_segment_header(file.read(SEGMENT_HEADER_BYTES))
        if header is not None:
            in_segments.add(header.epoch)
    kept = load_epoch(folder) if paths else None
    if len(in_segments | ({kept} if kept else set())) > 1:
        raise SpoolError(f"spool {folder}: holds files of two spools; keep those of one")
    epoch = kept or next(iter(in_segments), None) or secrets.token_hex(16)
    if epoch != kept:
        save_epoch(folder, epoch)
    return epoch


def _read(path: Path, epoch: str, now: float) -> _Found:
    with path.open("rb") as file:
        data = file.read()
        age = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
        os.fsync(file.fileno())  # what a killed process left in the page cache counts as durable from now on
    seed = seed_of(epoch)
    first_seq = int(path.stem)
    header = unpack_segment_header(data)
    scan = scan_segment(data, seed, first_seq)
    made_half = header is None and len(data) < SEGMENT_HEADER_BYTES
    segment = Segment(
        path,
        header or SegmentHeader(epoch=epoch, first_seq=first_seq, previous_seq=0, dropped_total=0),
        scan,
        touched=now - age,
    )
    acknowledgements.rewrite(path, seed, segment.remove(acknowledgements.load(path, seed)))
    tail = 0 if scan.torn else max(0, len(data) - scan.end)
    return _Found(
        segment=segment,
        has_header=header is not None,
        torn=scan.torn or made_half,
        size=len(data),
        lost_records=scan.lost_records,
        damaged_bytes=scan.damaged_bytes + tail,
    )


def _cut_tail(newest: _Found) -> int:
    """Cut the newest segment after its last whole record; return how many bytes went."""
    excess = newest.size - newest.segment.end
    if excess <= 0:
        return 0
    fd = os.open(newest.segment.path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, newest.segment.end)
        os.fsync(fd)
    finally:
        os.close(fd)
    return excess


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


_NEXT = "next"
_WHOLE = "whole"


def successor(folder: Path) -> Path:
    """Return where the successor of the spool in `folder` is made."""
    return folder / _NEXT


def clear(folder: Path) -> None:
    """Remove a successor that is not to be. Raises OSError."""
    if successor(folder).exists():
        shutil.rmtree(successor(folder))


def declare_whole(folder: Path) -> None:
    """Say durably that the successor has everything. Raises OSError."""
    fd = os.open(successor(folder) / _WHOLE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(successor(folder))
    sync_folder(folder)


def settle(folder: Path) -> None:
    """Put a whole successor in the spool's place, from wherever that was interrupted; remove one that is not whole.

    Raises:
        OSError: if the disk refuses; it is done the next time then.
    """
    following = successor(folder)
    epoch = load_epoch(following) if (following / _WHOLE).exists() else None
    if epoch is None:
        clear(folder)
        return
    for path in folder.glob(f"*{SUFFIX}"):
        if _epoch_of(path) != epoch:
            path.unlink()
            acknowledgements.path_beside(path).unlink(missing_ok=True)
    for path in following.glob(f"*{SUFFIX}"):
        path.replace(folder / path.name)
    save_epoch(folder, epoch)
    clear(folder)


def _epoch_of(segment: Path) -> str | None:
    with segment.open("rb") as file:
        header = unpack_segment_header(file.read(SEGMENT_HEADER_BYTES))
    return None if header is None else header.epoch
