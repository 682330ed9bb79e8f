"""Bounded queue of byte strings on disk, with numbered and checksummed records and a single owner."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from gpufleet.model.errors import SpoolError
from gpufleet.spool.durable import DurableMark
from gpufleet.spool.folder import GroupCommit, disk_error, lock
from gpufleet.spool.recovery import Recovered, adopt_successor, recover
from gpufleet.spool.segment import SpoolRecord, read_records
from gpufleet.spool.segment_list import ReadSelection, SegmentList, SpoolBounds, SpoolDepth


class Spool:
    """A durable queue. Methods may be called from several threads, `put` and `put_all` from one event loop.

    Attributes:
        recovery: summary of opening the spool.
        folder: folder of the spool.
        epoch: random identifier of the spool, 32 hexadecimal digits, created with the spool.
        segment_bytes: size of a segment, and so the bound on one body with its header.
        next_seq: number of the next record: 1, 2, 3, ... continued across restarts.
    """

    def __init__(
        self, folder: Path, lock_fd: int, found: Recovered, bounds: SpoolBounds, monotonic: Callable[[], float]
    ) -> None:
        self.recovery = found.report
        self.folder = folder
        self.epoch = found.epoch
        self.segment_bytes = bounds.segment_bytes
        self.next_seq = found.next_seq
        self._lock_fd = lock_fd
        self._segments = SegmentList(folder, found, bounds, monotonic)
        self._mark = DurableMark(folder, self._segments.seed)
        self._durable_seq = found.next_seq - 1
        self._rollbacks = 0
        self._closed = False
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
            bounds = SpoolBounds(
                max_bytes=max_bytes,
                segment_bytes=min(segment_bytes, max_bytes // 2),
                max_age_seconds=max_age_seconds,
                drops=drops,
            )
            spool = cls(folder, lock_fd, found, bounds, monotonic)
            spool._segments.start(found.next_seq, found.intact)
        except OSError as error:
            os.close(lock_fd)
            raise disk_error(folder, "read or repair it", error) from error
        except SpoolError:
            os.close(lock_fd)
            raise
        return spool

    @property
    def dropped_total(self) -> int:
        """Unacknowledged records dropped or found damaged since the epoch began."""
        return self._segments.dropped_total

    @property
    def depth(self) -> SpoolDepth:
        """Current number and size of the unacknowledged records, and the oldest of them."""
        with self._state:
            return self._segments.depth()

    def append(self, body: bytes, at: int = 0) -> int:
        """Write a record and return its number. From the next `sync`, it is readable and survives a power cut.

        Args:
            body: its content.
            at: time of the record in nanoseconds since 1970, of the owner's choice; it is stored and returned with it.

        Raises:
            SpoolError: if the body is larger than a segment, the spool is full and `drops` is False, or the disk
                refuses; nothing is added then.
        """
        with self._state:
            self._check_open()
            seq = self.next_seq
            self._segments.append(SpoolRecord(seq, at, body))
            self.next_seq = seq + 1
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
            self._segments.check_newest()

    async def put(self, body: bytes, at: int = 0) -> int:
        """Append a record and return its number once it is durable; concurrent calls share one sync.

        Raises:
            SpoolError: see `append` and `sync`.
        """
        (put,) = await self.put_all([body], at)
        if isinstance(put, SpoolError):
            raise put
        return put

    async def put_all(self, bodies: Iterable[bytes], at: int = 0) -> list[int | SpoolError]:
        """Append records of one time; return, once they are durable, the number of each or the error that prevented it.

        Raises:
            SpoolError: see `sync`; no record is added then.
        """
        results: list[int | SpoolError] = []
        with self._state:
            for body in bodies:
                try:
                    results.append(self.append(body, at))
                except SpoolError as error:
                    results.append(error)
            rollbacks = self._rollbacks
        if any(isinstance(one, int) for one in results) and await self._commit.wait() != rollbacks:
            raise SpoolError(f"spool {self.folder}: the record was rolled back because a sync failed")
        return results

    def read(self, after: int = 0, *, max_records: int, max_bytes: int, skip: Container[int] = ()) -> list[SpoolRecord]:
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
    ) -> list[SpoolRecord]:
        """Return the newest records, newest first; otherwise like `read`."""
        return self._read(after, max_records, max_bytes, skip, newest_first=True)

    def _read(
        self, after: int, max_records: int, max_bytes: int, skip: Container[int], *, newest_first: bool
    ) -> list[SpoolRecord]:
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
            chosen = self._segments.select(wanted)
        records: list[SpoolRecord] = []
        for path, places in chosen:
            try:
                for seq, record in read_records(path, self._segments.seed, places):
                    if record is not None:
                        records.append(record)
                        continue
                    with self._state:
                        self._segments.drop_damaged(seq)
            except FileNotFoundError:
                with self._state:
                    self._segments.check_discarded(path)
            except OSError as error:
                raise disk_error(self.folder, "read it", error) from error
        return records

    def acknowledge(self, seqs: Iterable[int]) -> None:
        """Remove records from the queue, in any order; unknown and not yet durable numbers are ignored.

        Acknowledgements are saved without sync: after a crash a record may be read again, but is never lost.
        """
        with self._state:
            self._check_open()
            self._segments.acknowledge(sorted(seq for seq in seqs if seq <= self._durable_seq))

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
                self._segments.close()
                self._mark.close()
                os.close(self._lock_fd)

    def _check_open(self) -> None:
        if self._closed:
            raise SpoolError(f"spool {self.folder}: is closed")

    def _sync(self) -> int:
        """Make all appended records durable; return the number of rollbacks before it began."""
        with self._syncing:
            with self._state:
                self._check_open()
                target, rollbacks = self.next_seq - 1, self._rollbacks
                dirty, retired = self._segments.begin_sync()
            for segment in retired:
                segment.close()
            try:
                for segment, _ in dirty:
                    os.fsync(segment.fd)
            except OSError as error:
                with self._state:
                    self._roll_back()
                raise disk_error(self.folder, "make it durable", error) from error
            with self._state:
                try:
                    self._segments.mark_durable(dirty)
                except SpoolError:
                    self._roll_back()
                    raise
                if target != self._durable_seq:
                    self._durable_seq = target
                    with contextlib.suppress(OSError):  # then a loss at the end of the file may not be noticed
                        self._mark.save(target)
            return rollbacks

    def _roll_back(self) -> None:
        """Drop all records that are not durable: after a failed sync the kernel may have lost any of them."""
        self._rollbacks += 1
        self.next_seq = self._durable_seq + 1
        self._segments.roll_back(self.next_seq)
