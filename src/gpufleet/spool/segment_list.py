"""Segments of an open spool, oldest first: creation, bounds on size and age, deletion, and selection of records."""

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Container, Sequence
from pathlib import Path

import msgspec

from gpufleet.model.errors import SpoolError
from gpufleet.spool import acknowledgements
from gpufleet.spool.folder import SpoolGoneError, disk_error, sync_folder
from gpufleet.spool.record import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    pack_segment_header,
    scan_segment,
    seed_of,
)
from gpufleet.spool.recovery import Recovered, segment_path
from gpufleet.spool.segment import RecordPlace, SpoolRecord, SpoolSegment

AGE_STEPS = 16
"""A segment spans at most 1/16 of the maximum age, so records are dropped at most that much too late."""


class SpoolBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a spool; see `Spool.open`."""

    max_bytes: int
    segment_bytes: int
    max_age_seconds: float
    drops: bool


class ReadSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Records that a read selects.

    Attributes:
        after: exclusive lower bound on the numbers.
        until: inclusive upper bound on the numbers.
        skip: numbers to leave out.
        max_records: maximum number of records.
        max_bytes: bound on the total size of the bodies; the first record is selected even if it exceeds the bound.
        newest_first: select the highest numbers, highest first, instead of the lowest.
    """

    after: int
    until: int
    skip: Container[int]
    max_records: int
    max_bytes: int
    newest_first: bool


class SpoolDepth(msgspec.Struct, frozen=True, kw_only=True):
    """Number and size of the unacknowledged records, and number and time of the oldest of them, or None."""

    records: int
    bytes: int
    oldest_seq: int | None
    oldest_at: int | None


class SegmentList:
    """Segments of one spool. Not thread-safe: the spool holds its lock around every call.

    Attributes:
        seed: CRC seed of the spool.
        dropped_total: unacknowledged records dropped or found damaged since the epoch began.
    """

    def __init__(self, folder: Path, found: Recovered, bounds: SpoolBounds, monotonic: Callable[[], float]) -> None:
        """Take the recovered segments; call `start` before `append`."""
        self.seed = seed_of(found.epoch)
        self.dropped_total = found.dropped_total
        self._folder = folder
        self._epoch = found.epoch
        self._segments = found.segments
        self._bounds = bounds
        self._monotonic = monotonic
        self._retired: list[SpoolSegment] = []

    def start(self, next_seq: int, intact: bool) -> None:
        """Prepare to append to the newest segment if it is intact, else to a new one. Raises OSError, SpoolError."""
        self._discard_acknowledged()
        if intact:
            newest = self._segments[-1]
            newest.fd = os.open(newest.path, os.O_RDWR | os.O_CLOEXEC)
            return
        if self._segments and self._segments[-1].first_seq == next_seq:
            self._discard(self._segments[-1])  # its creation was interrupted; the new segment has the same name
        self._roll(next_seq)

    def depth(self) -> SpoolDepth:
        """Return the current number and size of the unacknowledged records."""
        waiting = [segment for segment in self._segments if segment.waiting_records]
        oldest_seq, oldest_at = waiting[0].oldest() if waiting else (None, None)
        return SpoolDepth(
            records=sum(segment.waiting_records for segment in waiting),
            bytes=sum(segment.waiting_bytes for segment in waiting),
            oldest_seq=oldest_seq,
            oldest_at=oldest_at,
        )

    def append(self, record: SpoolRecord) -> None:
        """Write a record, to a new segment if the newest is full or spans too much time.

        Raises:
            SpoolError: if the body is larger than a segment, the spool is full and drops nothing, or the disk refuses.
        """
        bounds, segment, now = self._bounds, self._segments[-1], self._monotonic()
        size = RECORD_HEADER_BYTES + len(record.body)
        if SEGMENT_HEADER_BYTES + size > bounds.segment_bytes:
            raise SpoolError(
                f"spool {self._folder}: a body of {len(record.body)} bytes exceeds the segment size of "
                f"{bounds.segment_bytes}"
            )
        # A new segment after an empty one would have the same name.
        is_aged = segment.next_seq > segment.first_seq and (
            now - segment.born > bounds.max_age_seconds / AGE_STEPS
            or self._segments[0].is_expired(now, bounds.max_age_seconds)
        )
        if is_aged or segment.end + size > bounds.segment_bytes:
            if not bounds.drops and self._expendable():
                raise SpoolError(
                    f"spool {self._folder}: is full: {len(self._segments)} segments hold unacknowledged records"
                )
            segment = self._roll(record.seq)
        try:
            segment.append(self.seed, record, now)
        except OSError as error:
            with contextlib.suppress(OSError):  # repeated before the next append
                segment.cut_excess()
            raise disk_error(self._folder, "append to it", error) from error

    def select(self, selection: ReadSelection) -> list[tuple[Path, list[RecordPlace]]]:
        """Return the places of the selected records by segment, in the requested order."""
        chosen: list[tuple[Path, list[RecordPlace]]] = []
        records = total = 0
        for segment in reversed(self._segments) if selection.newest_first else self._segments:
            places: list[RecordPlace] = []
            chosen.append((segment.path, places))
            for place in (
                segment.waiting_newest(selection.after) if selection.newest_first else segment.waiting(selection.after)
            ):
                seq, _, _, length = place
                if seq > selection.until or seq in selection.skip:
                    continue
                if records and total + length > selection.max_bytes:
                    return [(path, some) for path, some in chosen if some]
                places.append(place)
                records += 1
                total += length
                if records >= selection.max_records:  # return here: many records to skip may follow
                    return [(path, some) for path, some in chosen if some]
        return [(path, some) for path, some in chosen if some]

    def acknowledge(self, seqs: Sequence[int]) -> None:
        """Remove records, given by their sorted numbers, and the segments that have no others."""
        for segment in tuple(self._segments):
            inside = seqs[bisect_left(seqs, segment.first_seq) : bisect_left(seqs, segment.next_seq)]
            removed = segment.remove(inside)
            if removed and not segment.waiting_records and segment is not self._segments[-1]:
                self._discard(segment)
            elif removed:
                with contextlib.suppress(OSError):  # harmless on a full disk: the records are read again
                    acknowledgements.save(segment.path, self.seed, removed)

    def drop_damaged(self, seq: int) -> None:
        """Remove a record that was damaged since it was written, and count it."""
        for segment in self._segments:
            self.dropped_total += len(segment.remove([seq]))

    def begin_sync(self) -> tuple[list[tuple[SpoolSegment, int]], list[SpoolSegment]]:
        """Return the segments to sync with the end of each, oldest first, and the deleted segments to close."""
        retired, self._retired = self._retired, []
        return [(segment, segment.end) for segment in self._segments if segment.end > segment.durable_end], retired

    def mark_durable(self, synced: Sequence[tuple[SpoolSegment, int]]) -> None:
        """Mark the records of a sync as durable.

        Raises:
            SpoolGoneError: if a file was deleted meanwhile, except by this list; nothing is marked then.
        """
        for segment, _ in synced:
            if segment in self._segments:
                self._check_in_place(segment)
        for segment, end in synced:
            segment.durable_end = end
        for segment in self._segments[:-1]:
            if segment.durable_end == segment.end:
                segment.close()

    def roll_back(self, next_seq: int) -> None:
        """Drop all records that are not durable, which are those from number `next_seq`."""
        while len(self._segments) > 1 and self._segments[-1].first_seq > next_seq:
            self._discard(self._segments[-1])
        for segment in self._segments:
            if segment.end > segment.durable_end:
                segment.cut_back()
                with contextlib.suppress(OSError):  # repeated before the next append
                    segment.cut_excess()

    def check_newest(self) -> None:
        """Check that the newest segment is still in the folder. Raises SpoolGoneError."""
        self._check_in_place(self._segments[-1])

    def check_discarded(self, missing: Path) -> None:
        """Raise SpoolGoneError for a missing file, unless its segment was dropped or acknowledged."""
        if any(segment.path == missing for segment in self._segments):
            raise self._gone(missing)

    def close(self) -> None:
        """Close all files."""
        for segment in (*self._segments, *self._retired):
            segment.close()

    def _check_in_place(self, segment: SpoolSegment) -> None:
        """Check that a path still names the open file. Raises SpoolGoneError."""
        try:
            if os.path.samestat(segment.path.stat(), os.fstat(segment.fd)):
                return
        except FileNotFoundError:
            pass
        except OSError as error:
            raise disk_error(self._folder, "check its files", error) from error
        raise self._gone(segment.path)

    def _gone(self, path: Path) -> SpoolGoneError:
        waiting = sum(segment.waiting_records for segment in self._segments)
        return SpoolGoneError(
            f"spool {self._folder}: its file {path.name} was deleted or replaced while the spool was open, with "
            f"{waiting} records in the spool: restore the folder or start again with an empty one"
        )

    def _roll(self, next_seq: int) -> SpoolSegment:
        """Create and return the next segment; delete segments that are acknowledged, expired or over the size bound."""
        expendable = self._expendable() if self._bounds.drops else []
        dropped_total = self.dropped_total + sum(segment.waiting_records for segment in expendable)
        header = SegmentHeader(
            epoch=self._epoch,
            first_seq=next_seq,
            previous_seq=self._segments[-1].first_seq if self._segments else 0,
            dropped_total=dropped_total,
        )
        self._segments.append(self._create(header))
        self.dropped_total = dropped_total
        for segment in expendable:
            self._discard(segment)
        self._discard_acknowledged()
        return self._segments[-1]

    def _expendable(self) -> list[SpoolSegment]:
        """Return the oldest segments that are expired or must go to make room for another segment."""
        expendable: list[SpoolSegment] = []
        kept_bytes = sum(segment.end for segment in self._segments)
        now, bounds = self._monotonic(), self._bounds
        for segment in self._segments:
            has_room = kept_bytes + bounds.segment_bytes <= bounds.max_bytes
            if has_room and not segment.is_expired(now, bounds.max_age_seconds):
                break
            expendable.append(segment)
            kept_bytes -= segment.end
        return expendable

    def _create(self, header: SegmentHeader) -> SpoolSegment:
        """Create a segment's file and make it and its name durable.

        The numbering continues from its header when all other segments are deleted.
        """
        path = segment_path(self._folder, header.first_seq)
        data = pack_segment_header(header)
        segment = SpoolSegment(path, header, scan_segment(data, self.seed, header.first_seq), touched=self._monotonic())
        try:
            segment.create(data)
            sync_folder(self._folder)
        except OSError as error:
            if segment.fd >= 0:
                segment.close()
                path.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError):  # the folder was deleted
                raise self._gone(self._segments[-1].path if self._segments else path) from error
            raise disk_error(self._folder, "create a segment", error) from error
        return segment

    def _discard_acknowledged(self) -> None:
        for segment in self._segments[:-1]:
            if not segment.waiting_records:
                self._discard(segment)

    def _discard(self, segment: SpoolSegment) -> None:
        """Delete a segment. Its file is closed by a later sync, because the current one may be using it."""
        self._segments.remove(segment)
        if segment.fd >= 0:
            self._retired.append(segment)
        with contextlib.suppress(OSError):  # the next opening finds the file, and deletes or reads it again
            segment.path.unlink(missing_ok=True)
            acknowledgements.acknowledgement_path(segment.path).unlink(missing_ok=True)
