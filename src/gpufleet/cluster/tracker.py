"""Decides which objects of a resource are due: new, changed, repeated, or removed. Pure."""

import zlib
from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

import msgspec

from gpufleet.model.holdings import REPEAT_SECONDS
from gpufleet.model.kubernetes import CopyState, CopyStatus

T = TypeVar("T")

SLOTS = 20
"""Number of groups into which objects are divided for repetition. Each group has its own time."""

HANDOVER_SECONDS = 120.0
"""Time for which a standby keeps a removal, to report it if it becomes the leader."""

_REPEATED = (CopyState.SYNCED, CopyState.STALE)
"""States in which objects are repeated. Without permission or resource, nothing is known about them any more."""


class Removal(msgspec.Struct, Generic[T], frozen=True):
    """Object that is not in the copy any more.

    Attributes:
        uid: its UID.
        record: its last reported record, or None if it was not reported by this process.
        at: when its absence was noticed, nanoseconds since 1970.
    """

    uid: str
    record: T | None
    at: int


class DueObjects(msgspec.Struct, Generic[T], frozen=True):
    """Objects of a resource that are due.

    Attributes:
        present: records by UID: new, changed and repeated objects.
        removed: objects that have ended.
    """

    present: dict[str, T]
    removed: tuple[Removal[T], ...] = ()


class _Entry(Generic[T]):
    """Reported object: its record, the time of its repetition, and the time at which its absence was noticed."""

    __slots__ = ("due_at", "missing_at", "missing_since", "record")

    def __init__(self, record: T | None, due_at: float) -> None:
        self.record = record
        self.due_at = due_at
        self.missing_at: int | None = None
        self.missing_since = 0.0


class ObjectTracker(Generic[T]):
    """Reported objects of one resource, and what is due.

    An object is removed only if it is absent from a complete, current copy. A failed list, a stale copy or a missing
    permission removes nothing.

    Args:
        repeat_seconds: interval at which each unchanged object is due again.
        slots: number of groups into which repetitions are divided.
    """

    def __init__(self, *, repeat_seconds: float = REPEAT_SECONDS, slots: int = SLOTS) -> None:
        self._repeat = repeat_seconds
        self._slots = slots
        self._entries: dict[str, _Entry[T]] = {}

    def due(
        self,
        records: Mapping[str, T],
        status: CopyStatus,
        *,
        now: float,
        now_ns: int,
        rejected: Collection[str] = (),
    ) -> DueObjects[T]:
        """Return what is due. Call `confirm` and `confirm_removed` for what was reported.

        Args:
            records: the copy.
            status: its status.
            now: monotonic seconds.
            now_ns: nanoseconds since 1970.
            rejected: UIDs of present objects without a valid record. They are neither due nor removed.
        """
        entries, repeats = self._entries, status.state in _REPEATED
        present: dict[str, T] = {}
        for uid, record in records.items():
            entry = entries.get(uid)
            if entry is None or (entry.record is not record and entry.record != record):
                present[uid] = record
            else:
                entry.record = record
                if repeats and now >= entry.due_at:
                    present[uid] = record
        removed = [
            Removal(uid, entry.record, entry.missing_at if entry.missing_at is not None else now_ns)
            for uid, entry in self._missing(records, status, rejected)
        ]
        return DueObjects(present, tuple(removed))

    def reported(self, uid: str) -> T | None:
        """Return the record of an object as last reported by this process, or None."""
        entry = self._entries.get(uid)
        return entry.record if entry is not None else None

    def confirm(self, uid: str, record: T, now: float) -> None:
        """Note that an object was reported."""
        entry = self._entries.get(uid)
        if entry is None:
            self._entries[uid] = _Entry(record, self._next(uid, now))
        else:
            entry.record, entry.due_at, entry.missing_at = record, self._next(uid, now), None

    def confirm_removed(self, uid: str) -> None:
        """Note that the end of an object was reported."""
        self._entries.pop(uid, None)

    def follow(
        self,
        records: Mapping[str, T],
        status: CopyStatus,
        *,
        now: float,
        now_ns: int,
        rejected: Collection[str] = (),
    ) -> None:
        """Note the state of the copy without reporting, as a standby does. Later every object is due as new.

        An object that ends meanwhile stays due as removed for `HANDOVER_SECONDS`: the leader may end before it
        reported this. Arguments as in `due`.
        """
        for uid in records:
            entry = self._entries.get(uid)
            if entry is None:
                self._entries[uid] = _Entry(None, now)
            else:
                entry.record = entry.missing_at = None
        for uid, entry in self._missing(records, status, rejected):
            entry.record = None
            if entry.missing_at is None:
                entry.missing_at, entry.missing_since = now_ns, now
            elif now - entry.missing_since > HANDOVER_SECONDS:
                del self._entries[uid]

    def _missing(
        self, records: Mapping[str, T], status: CopyStatus, rejected: Collection[str]
    ) -> list[tuple[str, _Entry[T]]]:
        """Return the entries of objects that have ended for certain."""
        if status.state is not CopyState.SYNCED or not status.is_complete:
            return []
        return [(uid, self._entries[uid]) for uid in self._entries.keys() - records.keys() if uid not in rejected]

    def _next(self, uid: str, now: float) -> float:
        """Return the first time of the object's group after `now`: at most `repeat_seconds` later."""
        offset = zlib.crc32(uid.encode()) % self._slots * self._repeat / self._slots
        rounds = (now - offset) // self._repeat + 1
        return offset + rounds * self._repeat
