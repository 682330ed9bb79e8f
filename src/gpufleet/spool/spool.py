"""Bounded queue of byte strings on disk, with numbered and checksummed records and a single owner."""

import contextlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path

import msgspec

from gpufleet.model.errors import SpoolError
from gpufleet.spool import acknowledgements
from gpufleet.spool.durable import DurableMark
from gpufleet.spool.folder import GroupCommit, SpoolGoneError, disk_error, lock, sync_folder
from gpufleet.spool.record import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    pack_record_header,
    pack_segment_header,
    scan_segment,
    seed_of,
)
from gpufleet.spool.recovery import Recovered, adopt_successor, recover, segment_path
from gpufleet.spool.segment import RecordPlace, SpoolSegment, read_bodies, write_all


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


def select_places(segments: Sequence[SpoolSegment], selection: ReadSelection) -> list[tuple[Path, list[RecordPlace]]]:
    """Return the places of the selected records by segment, in the requested order."""
    chosen: list[tuple[Path, list[RecordPlace]]] = []
    records = total = 0
    for segment in reversed(segments) if selection.newest_first else segments:
        places: list[RecordPlace] = []
        chosen.append((segment.path, places))
        for place in (
            segment.waiting_newest(selection.after) if selection.newest_first else segment.waiting(selection.after)
        ):
            if place[0] > selection.until or place[0] in selection.skip:
                continue
            if records and total + place[2] > selection.max_bytes:
                return [(path, some) for path, some in chosen if some]
            places.append(place)
            records += 1
            total += place[2]
            if records >= selection.max_records:  # return here: many records to skip may follow
                return [(path, some) for path, some in chosen if some]
    return [(path, some) for path, some in chosen if some]


class SpoolDepth(msgspec.Struct, frozen=True, kw_only=True):
    """Number and size of the unacknowledged records; `oldest_seq` is None if there are none."""

    records: int
    bytes: int
    oldest_seq: int | None


class Spool:
    """A durable queue. Methods may be called from several threads, `put` and `put_all` from one event loop.

    Attributes:
        recovery: summary of opening the spool.
    """

    def __init__(
        self,
        folder: Path,
        lock_fd: int,
        found: Recovered,
        *,
        max_bytes: int,
        segment_bytes: int,
        max_age_seconds: float,
        drops: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self.recovery = found.report
        self._folder = folder
        self._lock_fd = lock_fd
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._max_age = max_age_seconds
        self._drops = drops
        self._monotonic = monotonic
        self._mark = DurableMark(folder, seed_of(found.epoch))
        self._epoch = found.epoch
        self._seed = seed_of(found.epoch)
        self._segments = found.segments
        self._next_seq = found.next_seq
        self._durable_seq = found.next_seq - 1
        self._dropped_total = found.dropped_total
        self._rollbacks = 0
        self._closed = False
        self._retired: list[SpoolSegment] = []
        self._state = threading.RLock()
        self._syncing = threading.Lock()
        self._commit = GroupCommit(self._sync)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        max_bytes: int,
        segment_bytes: int = 8 << 20,
        max_age_seconds: float = float("inf"),
        drops: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> "Spool":
        """Open or create the spool in `folder`. Blocking: reads all its files.

        Args:
            folder: created if missing; one process at a time may have it open.
            max_bytes: bound on all segments; beyond it, the oldest segments are dropped and their records counted.
                Acknowledged records count until their whole segment is acknowledged.
            segment_bytes: size of a segment, and so the bound on one body; at most half of `max_bytes`.
            max_age_seconds: on append, segments without a younger record are dropped and their records counted. Age is
                measured by `monotonic`, so that setting the clock drops nothing. The age of segments found on opening
                comes from the files' modification times.
            drops: if False, nothing is dropped for room or age, and `append` raises SpoolError when the spool is full.
            monotonic: returns seconds from any start.

        Raises:
            SpoolDiskError: if the disk is full, read-only or broken.
            SpoolError: if another process has the spool open, or for any other system error.
        """
        lock_fd = lock(folder)
        try:
            adopt_successor(folder)
            found = recover(folder, monotonic())
            spool = cls(
                folder,
                lock_fd,
                found,
                max_bytes=max_bytes,
                segment_bytes=min(segment_bytes, max_bytes // 2),
                max_age_seconds=max_age_seconds,
                drops=drops,
                monotonic=monotonic,
            )
            spool._continue(found.intact)
        except OSError as error:
            os.close(lock_fd)
            raise disk_error(folder, "read or repair it", error) from error
        except SpoolError:
            os.close(lock_fd)
            raise
        return spool

    @property
    def epoch(self) -> str:
        """Random identifier of the spool, 32 hexadecimal digits, created with the spool."""
        return self._epoch

    @property
    def folder(self) -> Path:
        """Folder of the spool."""
        return self._folder

    @property
    def segment_bytes(self) -> int:
        """Size of a segment in bytes, and so the bound on one body with its header."""
        return self._segment_bytes

    @property
    def next_seq(self) -> int:
        """Number of the next record: 1, 2, 3, ... continued across restarts."""
        return self._next_seq

    @property
    def dropped_total(self) -> int:
        """Unacknowledged records dropped or found damaged since the epoch began."""
        return self._dropped_total

    @property
    def depth(self) -> SpoolDepth:
        """Current number and size of the unacknowledged records."""
        with self._state:
            waiting = [segment for segment in self._segments if segment.waiting_records]
            return SpoolDepth(
                records=sum(segment.waiting_records for segment in waiting),
                bytes=sum(segment.waiting_bytes for segment in waiting),
                oldest_seq=waiting[0].oldest() if waiting else None,
            )

    def append(self, body: bytes) -> int:
        """Write a record and return its number. From the next `sync`, it is readable and survives a power cut.

        Raises:
            SpoolError: if the body is larger than a segment, the spool is full and `drops` is False, or the disk
                refuses; nothing is added then.
        """
        size = RECORD_HEADER_BYTES + len(body)
        if SEGMENT_HEADER_BYTES + size > self._segment_bytes:
            raise SpoolError(
                f"spool {self._folder}: a body of {len(body)} bytes exceeds the segment size of {self._segment_bytes}"
            )
        with self._state:
            self._check_open()
            segment = self._segments[-1]
            if segment.end + size > self._segment_bytes or self._is_aged():
                if not self._drops and self._expendable():
                    raise SpoolError(
                        f"spool {self._folder}: is full: {len(self._segments)} segments hold unacknowledged records"
                    )
                segment = self._roll()
            seq = self._next_seq
            self._write(segment, [pack_record_header(self._seed, seq, body), body], size)
            segment.note(seq, len(body), self._monotonic())
            self._next_seq = seq + 1
            return seq

    def sync(self) -> None:
        """Make all appended records durable. Blocking: run it in a thread.

        Raises:
            SpoolGoneError: if the files were deleted.
            SpoolError: if the disk refuses; records that were not durable are rolled back, with their numbers.
        """
        self._sync()

    def check_files(self) -> None:
        """Check that the newest segment is still in the folder, so that an idle owner notices its deletion.

        Raises:
            SpoolGoneError: if it was deleted, moved or replaced.
        """
        with self._state:
            self._check_open()
            self._check_in_place(self._segments[-1])

    async def put(self, body: bytes) -> int:
        """Append a record and return its number once it is durable; concurrent calls share one sync.

        Raises:
            SpoolError: see `append` and `sync`.
        """
        (put,) = await self.put_all([body])
        if isinstance(put, SpoolError):
            raise put
        return put

    async def put_all(self, bodies: Iterable[bytes]) -> list[int | SpoolError]:
        """Append records; return, once they are durable, the number of each or the error that prevented it.

        Raises:
            SpoolError: see `sync`; no record is added then.
        """
        with self._state:
            results = [self._try_append(body) for body in bodies]
            rollbacks = self._rollbacks
        if any(isinstance(one, int) for one in results) and await self._commit.wait() != rollbacks:
            raise SpoolError(f"spool {self._folder}: the record was rolled back because a sync failed")
        return results

    def _try_append(self, body: bytes) -> int | SpoolError:
        try:
            return self.append(body)
        except SpoolError as error:
            return error

    def read(
        self, after: int = 0, *, max_records: int, max_bytes: int, skip: Container[int] = ()
    ) -> list[tuple[int, bytes]]:
        """Return durable, unacknowledged records after number `after` and not in `skip`, oldest first. Blocking.

        At least one record is returned if there is any, even if it exceeds `max_bytes`. A damaged record is skipped and
        counted as dropped.

        Raises:
            SpoolGoneError: if the files were deleted.
            SpoolError: if the disk refuses.
        """
        return self._read(after, max_records, max_bytes, skip, newest_first=False)

    def read_newest(
        self, after: int = 0, *, max_records: int, max_bytes: int, skip: Container[int] = ()
    ) -> list[tuple[int, bytes]]:
        """Return the newest records, newest first; otherwise like `read`."""
        return self._read(after, max_records, max_bytes, skip, newest_first=True)

    def _read(
        self, after: int, max_records: int, max_bytes: int, skip: Container[int], *, newest_first: bool
    ) -> list[tuple[int, bytes]]:
        with self._state:
            self._check_open()
            wanted = ReadSelection(
                after=after,
                until=self._durable_seq,
                skip=skip,
                max_records=max_records,
                max_bytes=max_bytes,
                newest_first=newest_first,
            )
            chosen = select_places(self._segments, wanted)
        records: list[tuple[int, bytes]] = []
        for path, places in chosen:
            try:
                for seq, body in read_bodies(path, self._seed, places):
                    if body is not None:
                        records.append((seq, body))
                    else:
                        self._drop_damaged(seq)
            except FileNotFoundError:
                self._check_discarded(path)
            except OSError as error:
                raise disk_error(self._folder, "read it", error) from error
        return records

    def acknowledge(self, seqs: Iterable[int]) -> None:
        """Remove records from the queue, in any order; unknown and not yet durable numbers are ignored.

        Acknowledgements are saved without sync: after a crash a record may be read again, but is never lost.
        """
        with self._state:
            self._check_open()
            wanted = sorted(seq for seq in seqs if seq <= self._durable_seq)
            for segment in tuple(self._segments):
                inside = wanted[bisect_left(wanted, segment.first_seq) : bisect_left(wanted, segment.next_seq)]
                removed = segment.remove(inside)
                if removed and not segment.waiting_records and segment is not self._segments[-1]:
                    self._discard(segment)
                elif removed:
                    with contextlib.suppress(OSError):  # harmless on a full disk: the records are read again
                        acknowledgements.save(segment.path, self._seed, removed)

    def close(self) -> None:
        """Make all records durable, close and unlock; a second close does nothing.

        Raises:
            SpoolError: if the records cannot be made durable; the spool is closed nevertheless.
        """
        if self._closed:
            return
        try:
            self.sync()
        finally:
            with self._syncing, self._state:
                self._closed = True
                for segment in (*self._segments, *self._retired):
                    segment.close()
                self._mark.close()
                os.close(self._lock_fd)

    def _continue(self, intact: bool) -> None:
        """Prepare to append to the newest segment if it is intact, else to a new one."""
        for segment in self._segments[:-1]:
            if not segment.waiting_records:
                self._discard(segment)
        if intact:
            newest = self._segments[-1]
            newest.fd = os.open(newest.path, os.O_RDWR | os.O_CLOEXEC)
            return
        if self._segments and self._segments[-1].first_seq == self._next_seq:
            self._discard(self._segments[-1])  # its creation was interrupted; the new segment has the same name
        self._roll()

    def _check_open(self) -> None:
        if self._closed:
            raise SpoolError(f"spool {self._folder}: is closed")

    def _check_discarded(self, missing: Path) -> None:
        """Accept a missing file if its segment was dropped or acknowledged since it was selected."""
        with self._state:
            if any(segment.path == missing for segment in self._segments):
                raise self._gone(missing)

    def _check_in_place(self, segment: SpoolSegment) -> None:
        try:
            in_place = segment.is_in_place()
        except OSError as error:
            raise disk_error(self._folder, "check its files", error) from error
        if not in_place:
            raise self._gone(segment.path)

    def _gone(self, path: Path) -> SpoolGoneError:
        waiting = sum(segment.waiting_records for segment in self._segments)
        return SpoolGoneError(
            f"spool {self._folder}: its file {path.name} was deleted or replaced while the spool was open, with "
            f"{waiting} records in the spool: restore the folder or start again with an empty one"
        )

    def _is_aged(self) -> bool:
        """Return whether age requires a new segment: the newest spans enough time, or the oldest has expired."""
        newest = self._segments[-1]
        if newest.next_seq == newest.first_seq:
            return False  # still empty: a new segment would have the same name
        now = self._monotonic()
        return newest.is_long(now, self._max_age) or self._segments[0].is_expired(now, self._max_age)

    def _roll(self) -> SpoolSegment:
        """Create and return the next segment; delete segments that are acknowledged, expired or over the size bound."""
        expendable = self._expendable() if self._drops else []
        dropped_total = self._dropped_total + sum(segment.waiting_records for segment in expendable)
        header = SegmentHeader(
            epoch=self._epoch,
            first_seq=self._next_seq,
            previous_seq=self._segments[-1].first_seq if self._segments else 0,
            dropped_total=dropped_total,
        )
        self._segments.append(self._create_segment(header))
        self._dropped_total = dropped_total
        for segment in expendable:
            self._discard(segment)
        for segment in self._segments[:-1]:
            if not segment.waiting_records:
                self._discard(segment)
        return self._segments[-1]

    def _expendable(self) -> list[SpoolSegment]:
        """Return the oldest segments that are expired or must go to make room for another segment."""
        expendable: list[SpoolSegment] = []
        kept_bytes = sum(segment.end for segment in self._segments)
        now = self._monotonic()
        for segment in self._segments:
            if kept_bytes + self._segment_bytes <= self._max_bytes and not segment.is_expired(now, self._max_age):
                break
            expendable.append(segment)
            kept_bytes -= segment.end
        return expendable

    def _create_segment(self, header: SegmentHeader) -> SpoolSegment:
        """Create a segment's file and make it and its name durable.

        The numbering continues from its header when all other segments are deleted.
        """
        path = segment_path(self._folder, header.first_seq)
        data = pack_segment_header(header)
        segment = SpoolSegment(
            path, header, scan_segment(data, self._seed, header.first_seq), touched=self._monotonic()
        )
        try:
            segment.create(data)
            sync_folder(self._folder)
        except OSError as error:
            if segment.fd is not None:
                segment.close()
                path.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError):  # the folder was deleted
                raise self._gone(self._segments[-1].path if self._segments else path) from error
            raise disk_error(self._folder, "create a segment", error) from error
        return segment

    def _write(self, segment: SpoolSegment, parts: list[bytes], size: int) -> None:
        try:
            if segment.has_excess:
                segment.cut_excess()
            segment.has_excess = True
            write_all(segment.descriptor, parts, size, segment.end)
            segment.has_excess = False
        except OSError as error:
            with contextlib.suppress(OSError):  # repeated before the next append
                segment.cut_excess()
            raise disk_error(self._folder, "append to it", error) from error

    def _discard(self, segment: SpoolSegment) -> None:
        """Delete a segment. Its file is closed by a later sync, because the current one may be using it."""
        self._segments.remove(segment)
        if segment.fd is not None:
            self._retired.append(segment)
        with contextlib.suppress(OSError):  # the next opening finds the file, and deletes or reads it again
            segment.path.unlink(missing_ok=True)
            acknowledgements.acknowledgement_path(segment.path).unlink(missing_ok=True)

    def _sync(self) -> int:
        """Make all appended records durable; return the number of rollbacks before it began."""
        with self._syncing:
            with self._state:
                self._check_open()
                target, rollbacks = self._next_seq - 1, self._rollbacks
                dirty = [(segment, segment.end) for segment in self._segments if segment.end > segment.durable_end]
                retired, self._retired = self._retired, []
            for segment in retired:
                segment.close()
            try:
                for segment, _ in dirty:
                    os.fsync(segment.descriptor)
            except OSError as error:
                with self._state:
                    self._roll_back()
                raise disk_error(self._folder, "make it durable", error) from error
            with self._state:
                try:
                    for segment, _ in dirty:
                        if segment in self._segments:  # else dropped meanwhile
                            self._check_in_place(segment)
                except SpoolError:
                    self._roll_back()
                    raise
                for segment, end in dirty:
                    segment.durable_end = end
                if target != self._durable_seq:
                    self._durable_seq = target
                    with contextlib.suppress(OSError):  # then a loss at the end of the file may not be noticed
                        self._mark.save(target)
                for segment in self._segments[:-1]:
                    if segment.durable_end == segment.end:
                        segment.close()
            return rollbacks

    def _roll_back(self) -> None:
        """Drop all records that are not durable: after a failed sync the kernel may have lost any of them."""
        self._rollbacks += 1
        self._next_seq = self._durable_seq + 1
        while len(self._segments) > 1 and self._segments[-1].first_seq > self._next_seq:
            self._discard(self._segments[-1])
        for segment in self._segments:
            if segment.end > segment.durable_end:
                segment.cut_back()
                with contextlib.suppress(OSError):  # repeated before the next append
                    segment.cut_excess()

    def _drop_damaged(self, seq: int) -> None:
        with self._state:
            for segment in self._segments:
                self._dropped_total += len(segment.remove([seq]))
