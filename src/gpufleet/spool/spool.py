"""A queue of byte strings on disk: numbered, checksummed, bounded, with one owner.

Which records a read should take, before anything is read.
"""

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
from gpufleet.spool.folder import GroupCommit, lock, sync_folder, words
from gpufleet.spool.record import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    pack_record_header,
    pack_segment_header,
    scan_segment,
    seed_of,
)
from gpufleet.spool.recovery import Recovered, recover, segment_path, settle
from gpufleet.spool.segment import Place, Segment, read_bodies, write_all


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a read asks for.

    Attributes:
        after: only numbers past this one.
        until: only numbers up to this one.
        skip: but not these.
        max_records: at most this many.
        max_bytes: of bodies; the first is taken even if it alone has more.
        newest_first: the highest numbers, highest first, rather than the lowest.
    """

    after: int
    until: int
    skip: Container[int]
    max_records: int
    max_bytes: int
    newest_first: bool


def choose(segments: Sequence[Segment], wanted: Wanted) -> list[tuple[Path, list[Place]]]:
    """Return the places to read, by segment, in the order in which they were asked for."""
    chosen: list[tuple[Path, list[Place]]] = []
    records = total = 0
    for segment in reversed(segments) if wanted.newest_first else segments:
        places: list[Place] = []
        chosen.append((segment.path, places))
        for place in segment.waiting_newest(wanted.after) if wanted.newest_first else segment.waiting(wanted.after):
            if place[0] > wanted.until or place[0] in wanted.skip:
                continue
            if records and total + place[2] > wanted.max_bytes:
                return [(path, some) for path, some in chosen if some]
            places.append(place)
            records += 1
            total += place[2]
            if records >= wanted.max_records:  # at once: past them there may be many to skip
                return [(path, some) for path, some in chosen if some]
    return [(path, some) for path, some in chosen if some]


class SpoolDepth(msgspec.Struct, frozen=True, kw_only=True):
    """What waits: not acknowledged yet. `oldest_seq` is None when nothing does."""

    records: int
    bytes: int
    oldest_seq: int | None


class Spool:
    """The queue. Methods may be called from several threads; `put` from one event loop.

    Attributes:
        recovery: what opening found.
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
        self._epoch = found.epoch
        self._seed = seed_of(found.epoch)
        self._segments = found.segments
        self._next_seq = found.next_seq
        self._durable_seq = found.next_seq - 1
        self._dropped_total = found.dropped_total
        self._taken_back = 0
        self._closed = False
        self._retired: list[Segment] = []
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
        """Open the spool in `folder`, or make one. Blocking: reads all that is there.

        Args:
            folder: made if missing; one process at a time may have it open.
            max_bytes: of all segments; when it is passed the oldest segments are dropped and counted. What was
                acknowledged counts until its whole segment was.
            segment_bytes: size of a segment, and so the bound on one body; at most half of `max_bytes`.
            max_age_seconds: when the next record is appended, segments without a younger record are dropped and
                counted. A process that runs measures it by `monotonic`, so that setting the clock drops nothing;
                how old what it finds on opening is, the files' times of change tell.
            drops: if not, `append` refuses what there is no room for, and nothing is ever dropped for room or age.
            monotonic: seconds from any start.

        Raises:
            SpoolDiskError: if the disk is full, read-only or broken.
            SpoolError: if it is open elsewhere or the system refuses otherwise; says what the system said.
        """
        lock_fd = lock(folder)
        try:
            settle(folder)
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
            raise words(folder, "read or repair it", error) from error
        except SpoolError:
            os.close(lock_fd)
            raise
        return spool

    @property
    def epoch(self) -> str:
        """32 hexadecimal digits, random, made with the spool."""
        return self._epoch

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder

    @property
    def segment_bytes(self) -> int:
        """Size of a segment, and so the bound on one body with its header."""
        return self._segment_bytes

    @property
    def next_seq(self) -> int:
        """The number that the next record will get: 1, 2, 3, ... without a break over restarts."""
        return self._next_seq

    @property
    def dropped_total(self) -> int:
        """Records dropped unacknowledged, since the epoch began, to stay within the bounds."""
        return self._dropped_total

    @property
    def depth(self) -> SpoolDepth:
        """What waits now."""
        with self._state:
            waiting = [segment for segment in self._segments if segment.waiting_records]
            return SpoolDepth(
                records=sum(segment.waiting_records for segment in waiting),
                bytes=sum(segment.waiting_bytes for segment in waiting),
                oldest_seq=waiting[0].oldest() if waiting else None,
            )

    def append(self, body: bytes) -> int:
        """Write a record and return its number. It is readable, and survives a power cut, from the next `sync`.

        Raises:
            SpoolError: if it is larger than a segment, there is no room in a spool that drops nothing, or the disk
                refuses; nothing was added then.
        """
        size = RECORD_HEADER_BYTES + len(body)
        if SEGMENT_HEADER_BYTES + size > self._segment_bytes:
            raise SpoolError(f"spool {self._folder}: a body of {len(body)} bytes does not fit in a segment")
        with self._state:
            self._check_open()
            segment = self._segments[-1]
            if segment.end + size > self._segment_bytes or self._is_aged():
                if not self._drops and self._doomed():
                    raise SpoolError(
                        f"spool {self._folder}: is full: {len(self._segments)} segments hold something that still waits"
                    )
                segment = self._roll()
            seq = self._next_seq
            self._write(segment, [pack_record_header(self._seed, seq, body), body], size)
            segment.note(seq, len(body), self._monotonic())
            self._next_seq = seq + 1
            return seq

    def sync(self) -> None:
        """Make everything appended so far durable. Blocking: run it in a thread.

        Raises:
            SpoolError: if the disk refuses; all that was not durable is taken back, its numbers too.
        """
        self._sync()

    async def put(self, body: bytes) -> int:
        """Append a record and return its number once it is durable; puts at the same time share one sync.

        Raises:
            SpoolError: as `append` and `sync`.
        """
        (put,) = await self.put_all([body])
        if isinstance(put, SpoolError):
            raise put
        return put

    async def put_all(self, bodies: Iterable[bytes]) -> list[int | SpoolError]:
        """Append records and return, once they are durable, the number of each, or why it was not appended.

        Raises:
            SpoolError: as `sync`: none of them is there then.
        """
        with self._state:
            put = [self._try_append(body) for body in bodies]
            taken_back = self._taken_back
        if any(isinstance(one, int) for one in put) and await self._commit.wait() != taken_back:
            raise SpoolError(f"spool {self._folder}: the record was taken back when a sync failed")
        return put

    def _try_append(self, body: bytes) -> int | SpoolError:
        try:
            return self.append(body)
        except SpoolError as error:
            return error

    def read(
        self, after: int = 0, *, max_records: int, max_bytes: int, skip: Container[int] = ()
    ) -> list[tuple[int, bytes]]:
        """Return durable records past number `after` that still wait and are not in `skip`, oldest first. Blocking.

        At least one, if there is one, even if it is larger than `max_bytes`. A record that the disk gives
        back damaged is counted as dropped and passed over.

        Raises:
            SpoolError: if the disk refuses.
        """
        return self._read(after, max_records, max_bytes, skip, newest_first=False)

    def read_newest(
        self, after: int = 0, *, max_records: int, max_bytes: int, skip: Container[int] = ()
    ) -> list[tuple[int, bytes]]:
        """Return the newest of those records, newest first; otherwise as `read`."""
        return self._read(after, max_records, max_bytes, skip, newest_first=True)

    def _read(
        self, after: int, max_records: int, max_bytes: int, skip: Container[int], *, newest_first: bool
    ) -> list[tuple[int, bytes]]:
        with self._state:
            self._check_open()
            wanted = Wanted(
                after=after,
                until=self._durable_seq,
                skip=skip,
                max_records=max_records,
                max_bytes=max_bytes,
                newest_first=newest_first,
            )
            chosen = choose(self._segments, wanted)
        records: list[tuple[int, bytes]] = []
        for path, places in chosen:
            try:
                for seq, body in read_bodies(path, self._seed, places):
                    if body is not None:
                        records.append((seq, body))
                    else:
                        self._drop_damaged(seq)
            except FileNotFoundError:
                continue  # dropped, or acknowledged, since it was chosen
            except OSError as error:
                raise words(self._folder, "read it", error) from error
        return records

    def acknowledge(self, seqs: Iterable[int]) -> None:
        """Take records out of the queue, in any order; unknown numbers, and ones not durable yet, are passed over.

        Saved without waiting for the disk: after a crash a record may be shown again, never lost.
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
                    with contextlib.suppress(OSError):  # a full disk may lose this: the records are shown again
                        acknowledgements.save(segment.path, self._seed, removed)

    def close(self) -> None:
        """Make everything durable, close and unlock; a second close does nothing.

        Raises:
            SpoolError: if what was appended cannot be made durable; it is closed all the same.
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
                os.close(self._lock_fd)

    def _continue(self, intact: bool) -> None:
        """Make ready to append: on the newest segment if it is intact, else on a new one."""
        for segment in self._segments[:-1]:
            if not segment.waiting_records:
                self._discard(segment)
        if intact:
            newest = self._segments[-1]
            newest.fd = os.open(newest.path, os.O_RDWR | os.O_CLOEXEC)
            return
        if self._segments and self._segments[-1].first_seq == self._next_seq:
            self._discard(self._segments[-1])  # its making was interrupted: the new one takes its name
        self._roll()

    def _check_open(self) -> None:
        if self._closed:
            raise SpoolError(f"spool {self._folder}: is closed")

    def _is_aged(self) -> bool:
        """Tell whether age asks for a new segment: this one spans enough, or the oldest is to go."""
        newest = self._segments[-1]
        if newest.next_seq == newest.first_seq:
            return False  # still empty: there cannot be two of one name
        now = self._monotonic()
        return newest.is_long(now, self._max_age) or self._segments[0].is_expired(now, self._max_age)

    def _roll(self) -> Segment:
        """Make the next segment, drop what has to go if it drops anything, and return it."""
        doomed = self._doomed() if self._drops else []
        dropped_total = self._dropped_total + sum(segment.waiting_records for segment in doomed)
        header = SegmentHeader(
            epoch=self._epoch,
            first_seq=self._next_seq,
            previous_seq=self._segments[-1].first_seq if self._segments else 0,
            dropped_total=dropped_total,
        )
        self._segments.append(self._make(header))
        self._dropped_total = dropped_total
        for segment in doomed:
            self._discard(segment)
        for segment in self._segments[:-1]:
            if not segment.waiting_records:
                self._discard(segment)
        return self._segments[-1]

    def _doomed(self) -> list[Segment]:
        """Return the oldest segments, those that a further one would take the room of, or that are too old."""
        doomed: list[Segment] = []
        kept_bytes = sum(segment.end for segment in self._segments)
        now = self._monotonic()
        for segment in self._segments:
            if kept_bytes + self._segment_bytes <= self._max_bytes and not segment.is_expired(now, self._max_age):
                break
            doomed.append(segment)
            kept_bytes -= segment.end
        return doomed

    def _make(self, header: SegmentHeader) -> Segment:
        """Make a segment's file, durable with its name: the numbering goes on from it if all others are deleted."""
        path = segment_path(self._folder, header.first_seq)
        data = pack_segment_header(header)
        segment = Segment(path, header, scan_segment(data, self._seed, header.first_seq), touched=self._monotonic())
        try:
            segment.create(data)
            sync_folder(self._folder)
        except OSError as error:
            if segment.fd is not None:
                segment.close()
                path.unlink(missing_ok=True)
            raise words(self._folder, "make a segment", error) from error
        return segment

    def _write(self, segment: Segment, parts: list[bytes], size: int) -> None:
        try:
            if segment.has_excess:
                segment.cut_excess()
            segment.has_excess = True
            write_all(segment.descriptor, parts, size, segment.end)
            segment.has_excess = False
        except OSError as error:
            with contextlib.suppress(OSError):  # tried again before anything is appended
                segment.cut_excess()
            raise words(self._folder, "append to it", error) from error

    def _discard(self, segment: Segment) -> None:
        """Delete a segment. Its file stays open until no sync can be using it."""
        self._segments.remove(segment)
        if segment.fd is not None:
            self._retired.append(segment)
        with contextlib.suppress(OSError):  # what cannot be deleted is found, and deleted or shown, on opening
            segment.path.unlink(missing_ok=True)
            acknowledgements.path_beside(segment.path).unlink(missing_ok=True)

    def _sync(self) -> int:
        """Sync; return how often records had been taken back when it began."""
        with self._syncing:
            with self._state:
                self._check_open()
                target, taken_back = self._next_seq - 1, self._taken_back
                dirty = [(segment, segment.end) for segment in self._segments if segment.end > segment.durable_end]
                retired, self._retired = self._retired, []
            for segment in retired:
                segment.close()
            try:
                for segment, _ in dirty:
                    os.fsync(segment.descriptor)
            except OSError as error:
                with self._state:
                    self._take_back()
                raise words(self._folder, "make it durable", error) from error
            with self._state:
                for segment, end in dirty:
                    segment.durable_end = end
                self._durable_seq = target
                for segment in self._segments[:-1]:
                    if segment.durable_end == segment.end:
                        segment.close()
            return taken_back

    def _take_back(self) -> None:
        """Forget everything that is not durable: after a failed sync the system may have dropped any of it."""
        self._taken_back += 1
        self._next_seq = self._durable_seq + 1
        while len(self._segments) > 1 and self._segments[-1].first_seq > self._next_seq:
            self._discard(self._segments[-1])
        for segment in self._segments:
            if segment.end > segment.durable_end:
                segment.cut_back()
                with contextlib.suppress(OSError):  # tried again before anything is appended
                    segment.cut_excess()

    def _drop_damaged(self, seq: int) -> None:
        with self._state:
            for segment in self._segments:
                self._dropped_total += len(segment.remove([seq]))
