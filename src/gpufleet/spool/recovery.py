"""Recovery of a spool's files on opening, read-only inspection, and replacement of a spool by its successor.

A successor is a spool under a new epoch, written in a folder inside the old one. Once complete, it takes the old one's
place.
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
from gpufleet.spool.durable import MARK_FILE, DurableMark
from gpufleet.spool.folder import load_epoch, save_epoch, sync_folder
from gpufleet.spool.record import SEGMENT_HEADER_BYTES, SegmentHeader, scan_segment, seed_of, unpack_segment_header
from gpufleet.spool.segment import SpoolSegment

SUFFIX = ".seg"


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of opening a spool.

    Attributes:
        records: unacknowledged records.
        torn_bytes: bytes cut off the end of the newest segment, where a crash interrupted a write.
        damaged_bytes: bytes that no longer hold an intact record.
        lost_records: records known to be missing: damaged, or durable once and now absent from the end.
    """

    records: int = 0
    torn_bytes: int = 0
    damaged_bytes: int = 0
    lost_records: int = 0


class Recovered(msgspec.Struct, kw_only=True):
    """State of a spool as found on disk; `intact` is whether its newest segment can be appended to."""

    epoch: str
    segments: list[SpoolSegment]
    next_seq: int
    dropped_total: int
    intact: bool
    report: Recovery


class _RecoveredSegment(msgspec.Struct, kw_only=True):
    segment: SpoolSegment
    has_header: bool
    torn: bool
    size: int
    lost_records: int
    damaged_bytes: int
    acknowledged: frozenset[int]


def segment_path(folder: Path, first_seq: int) -> Path:
    """Return the path of the segment whose first record has this number."""
    return folder / f"{first_seq:020d}{SUFFIX}"


def recover(folder: Path, now: float) -> Recovered:
    """Read every segment, keep every intact record, and cut off a half-written record at the end.

    Args:
        folder: of the spool.
        now: monotonic clock in seconds; the age of a segment comes from its file's modification time.

    Raises:
        SpoolError: if the files belong to two different spools.
        OSError: if a file cannot be read.
    """
    paths = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if path.stem.isdigit() and len(path.stem) == 20]
    epoch = _resolve_epoch(folder, paths)
    durable = DurableMark(folder, seed_of(epoch)).load() if paths else 0
    found = [_recover_segment(path, epoch, now) for path in paths]
    torn_bytes = _cut_tail(found[-1]) if found else 0
    newest = found[-1] if found else None
    next_seq = max((f.segment.next_seq for f in found), default=1)
    missing = range(next_seq, durable + 1)
    if newest is not None and not newest.torn:
        next_seq += 1
    damaged = sum(f.damaged_bytes for f in found)
    lost = sum(f.lost_records for f in found) + _unacknowledged(missing, newest)
    for before, after in pairwise(found):
        if after.segment.header.previous_seq == before.segment.first_seq:
            lost += max(0, after.segment.first_seq - before.segment.next_seq)
    return Recovered(
        epoch=epoch,
        segments=[f.segment for f in found],
        next_seq=max(next_seq, durable + 1),
        dropped_total=max((f.segment.header.dropped_total for f in found), default=0),
        intact=newest is not None and newest.has_header and newest.torn and not missing,
        report=Recovery(
            records=sum(f.segment.waiting_records for f in found),
            torn_bytes=torn_bytes,
            damaged_bytes=damaged,
            lost_records=lost,
        ),
    )


def _unacknowledged(missing: range, newest: _RecoveredSegment | None) -> int:
    """Return how many of the numbers missing after the newest segment's end were not acknowledged."""
    if newest is None:
        return len(missing)
    return len(missing) - sum(seq in missing for seq in newest.acknowledged)


def _resolve_epoch(folder: Path, paths: list[Path]) -> str:
    """Return the epoch of the epoch file, else of the segments, else a new one; always a new one without segments."""
    in_segments = set()
    for path in paths:
        with path.open("rb") as file:
            header = unpack_segment_header(file.read(SEGMENT_HEADER_BYTES))
        if header is not None:
            in_segments.add(header.epoch)
    kept = load_epoch(folder) if paths else None
    if len(in_segments | ({kept} if kept else set())) > 1:
        raise SpoolError(f"spool {folder}: contains files of two spools; remove the files of one")
    epoch = kept or next(iter(in_segments), None) or secrets.token_hex(16)
    if epoch != kept:
        save_epoch(folder, epoch)
    return epoch


def _recover_segment(path: Path, epoch: str, now: float) -> _RecoveredSegment:
    with path.open("rb") as file:
        data = file.read()
        age = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
        os.fsync(file.fileno())  # a killed process may have left data in the page cache only
    seed = seed_of(epoch)
    first_seq = int(path.stem)
    header = unpack_segment_header(data)
    scan = scan_segment(data, seed, first_seq)
    lacks_header = header is None and len(data) < SEGMENT_HEADER_BYTES  # its creation was interrupted
    segment = SpoolSegment(
        path,
        header or SegmentHeader(epoch=epoch, first_seq=first_seq, previous_seq=0, dropped_total=0),
        scan,
        touched=now - age,
    )
    acknowledged = acknowledgements.load(path, seed)
    acknowledgements.rewrite(path, seed, segment.remove(acknowledged))
    tail = 0 if scan.torn else max(0, len(data) - scan.end)
    return _RecoveredSegment(
        segment=segment,
        has_header=header is not None,
        torn=scan.torn or lacks_header,
        size=len(data),
        lost_records=scan.lost_records,
        damaged_bytes=scan.damaged_bytes + tail,
        acknowledged=frozenset(acknowledged),
    )


def _cut_tail(newest: _RecoveredSegment) -> int:
    """Truncate the newest segment after its last intact record; return the number of bytes removed."""
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


class SpoolContents(msgspec.Struct, frozen=True):
    """Unacknowledged records of a spool: number, size of bodies in bytes, and time of the oldest (None if empty)."""

    records: int
    size: int
    oldest_at: int | None


def inspect_spool(folder: Path) -> SpoolContents:
    """Read every segment without locking or changing anything.

    If another process owns the spool, the result may already be slightly out of date.

    Raises:
        OSError: if a file cannot be read.
    """
    records, size = 0, 0
    oldest_at: int | None = None
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # just deleted by its owner: all its records were acknowledged
        header = unpack_segment_header(data)
        if header is None:
            continue
        seed = seed_of(header.epoch)
        gone = set(acknowledgements.load(path, seed))
        scan = scan_segment(data, seed, header.first_seq)
        for seq, at, length in zip(scan.seqs, scan.times, scan.lengths, strict=True):
            if seq in gone:
                continue
            records, size = records + 1, size + length
            if oldest_at is None:
                oldest_at = at
    return SpoolContents(records, size, oldest_at)


_NEXT = "next"
_COMPLETE = "whole"


def successor_folder(folder: Path) -> Path:
    """Return the folder of the successor of the spool in `folder`."""
    return folder / _NEXT


def remove_successor(folder: Path) -> None:
    """Delete an unused successor. Raises OSError."""
    if successor_folder(folder).exists():
        shutil.rmtree(successor_folder(folder))


def mark_successor_complete(folder: Path) -> None:
    """Mark the successor as complete, durably. Raises OSError."""
    fd = os.open(successor_folder(folder) / _COMPLETE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(successor_folder(folder))
    sync_folder(folder)


def adopt_successor(folder: Path) -> None:
    """Replace the spool by its complete successor, also after an interruption; delete an incomplete successor.

    Raises:
        OSError: if the disk refuses; the next opening tries again.
    """
    following = successor_folder(folder)
    epoch = load_epoch(following) if (following / _COMPLETE).exists() else None
    if epoch is None:
        remove_successor(folder)
        return
    for path in folder.glob(f"*{SUFFIX}"):
        if _epoch_of(path) != epoch:
            path.unlink()
            acknowledgements.acknowledgement_path(path).unlink(missing_ok=True)
    for path in following.glob(f"*{SUFFIX}"):
        path.replace(folder / path.name)
    if (following / MARK_FILE).exists():
        (following / MARK_FILE).replace(folder / MARK_FILE)
    save_epoch(folder, epoch)
    remove_successor(folder)


def _epoch_of(segment: Path) -> str | None:
    with segment.open("rb") as file:
        header = unpack_segment_header(file.read(SEGMENT_HEADER_BYTES))
    return None if header is None else header.epoch
