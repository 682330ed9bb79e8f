"""Content-addressed sets, stored once and referenced by 8 bytes per row: absences, texts, inventories.

Also the caches of known sets, for writes and for reads.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.inventory import RETURN_GAP_NS
from gpufleet.model.machine import PciFunction
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES
from gpufleet.model.time import NANOS
from gpufleet.model.view import View
from gpufleet.model.wire.batch import WireAbsence
from gpufleet.stores.clickhouse.connection.client import Handle

EMPTY_SET = 0
"""Id of the empty set, which has no row."""

Subject = tuple[str, ...]
"""Key of a cache entry: cluster, machine, and view, reader or lane as needed."""

_SECOND, _STEP = (1 << 40) - 1, (1 << 20) - 1

_PAUSE_WEIGHT, _PAUSE_LIMIT = 2, 8
"""A pause counts 2, a usual step counts it down by 1; from 8 on, the steps are no pauses, such as four in a row."""

_USUAL_LIMIT = 60
"""Longest usual step in seconds: the steps of a sender whose connection fails again and again are pauses."""

_GAP = RETURN_GAP_NS // NANOS

_LANE_SECONDS = {lane.value: seconds for lane, seconds in LANE_SECONDS.items()}

_KNOWN_LIMIT = 3_000_000
"""Maximum entries per cache: a million GPUs with three readers each. An entry takes about 300 bytes."""


def set_id(content: object) -> int:
    """Return a 64-bit id of any content that MessagePack can encode. Equal content has equal ids on every machine."""
    digest = hashlib.blake2b(msgspec.msgpack.encode(content, order="deterministic"), digest_size=8)
    return int.from_bytes(digest.digest(), "little") or 1


def absence_set_id(absences: Iterable[WireAbsence]) -> int:
    """Return the id of a set of absences, in any order."""
    triples = sorted((absence.metric, absence.reason.value, absence.detail) for absence in absences)
    return set_id(triples) if triples else EMPTY_SET


def info_set_id(texts: Sequence[tuple[str, str]]) -> int:
    """Return the id of (metric, text) pairs, in any order."""
    return set_id(sorted(texts)) if texts else EMPTY_SET


def inventory_set_id(functions: Sequence[PciFunction]) -> int:
    """Return the id of a list of PCI functions. An empty list has an id too, because it is a reported state."""
    return set_id(sorted(functions, key=lambda function: function.address))


Content = TypeVar("Content")

_READ_LIMIT = 10_000


class SetCache(Generic[Content]):
    """Contents of sets by id. Ids derive from content, so entries never become stale.

    Thread-safe. Cleared completely when full.
    """

    def __init__(self) -> None:
        self._contents: dict[int, Content] = {}

    def split(self, ids: Iterable[int]) -> tuple[dict[int, Content], list[int]]:
        """Return the cached contents, and the remaining ids in order."""
        contents = self._contents
        found = {number: contents[number] for number in ids if number in contents}
        return found, sorted(number for number in ids if number not in found)

    def keep(self, contents: Mapping[int, Content]) -> None:
        """Add contents to the cache."""
        if len(self._contents) + len(contents) > _READ_LIMIT:
            self._contents = {}
        self._contents.update(contents)


class _TextRun(NamedTuple):
    """Reports of equal texts by one subject, so close to each other that none is missing in between.

    Attributes:
        texts: their id; 0 if the next report starts a run in any case.
        usual: usual seconds between two reports of the subject; 0 if unknown. Only of the newest run.
        pauses: count of the recent steps that were longer, at most `_PAUSE_LIMIT`. Only of the newest run.
        first, last: seconds of the first and the last report.
    """

    texts: int
    usual: int
    pauses: int
    first: int
    last: int

    def longest_step(self, lane: str) -> float:
        """Return the longest time between two reports of the subject without a missing one."""
        return min(MISSED_PASSES * max(self.usual, _LANE_SECONDS.get(lane, 0.0)), _GAP)

    def is_sparse(self, lane: str) -> bool:
        """Return whether the subject reports less often than its lane: reports can be missing within the run."""
        return self.usual > _LANE_SECONDS.get(lane, 0.0)

    def pace(self, step: int, longest: float) -> tuple[int, int]:
        """Return `usual` and `pauses` after a step in seconds.

        A pause does not change the usual step, because texts can change in it. If most steps are too long, they are no
        pauses: the subject reports less often than its lane.
        """
        if step <= longest:
            usual = (7 * self.usual + step) // 8 if self.usual else step
            return min(usual, _USUAL_LIMIT), max(0, self.pauses - 1)
        pauses = self.pauses + _PAUSE_WEIGHT
        return (self.usual, pauses) if pauses < _PAUSE_LIMIT else (min(step, _USUAL_LIMIT), 0)


def _pack(texts: int, usual: int, pauses: int, first: int, last: int) -> int:
    """Return a run as one number, which takes less memory; fields as in `_TextRun`."""
    return (((texts << 20 | usual) << 20 | pauses) << 40 | first) << 40 | last


def _unpack(run: int) -> _TextRun:
    return _TextRun(run >> 120, run >> 100 & _STEP, run >> 80 & _STEP, run >> 40 & _SECOND, run & _SECOND)


class WriteCache:
    """Content that the store already has, and that is not written again.

    An evicted entry is harmless: duplicate rows collapse in the store. Each cache is cleared completely when full.

    Attributes:
        absence_sets: ids in the table `absence_sets`.
        info: (cluster, machine, view, reader, lane) to the newest run of texts. The row of its first report is written.
        late_info: the same for the run that a backlog is part of, which is before the newest run.
        views: (cluster, machine, view, reader) to this process's hash of the last description, and its report time.
        view_lists: (cluster, machine) to a repeatedly sent list of views, and this process's hash of the reported
            (reader, views) pairs. All reported views of the list are written as they are in it.
        inventory: (cluster, machine) to the id of the newest list, and its report time.
    """

    def __init__(self) -> None:
        self.absence_sets: set[int] = set()
        self.info: dict[Subject, int] = {}
        self.late_info: dict[Subject, int] = {}
        self.views: dict[Subject, tuple[int, int]] = {}
        self.view_lists: dict[tuple[str, str], tuple[list[View], int]] = {}
        self.inventory: dict[Subject, tuple[int, int]] = {}

    def new_info(self, subject: Subject, number: int, at: int) -> int | None:
        """Return the time of the last report before texts that are to be written, or None if they are not.

        The newest row up to any report has to have the texts of that report. Reports can arrive in any order. A report
        is not written if it is in a run that is known.

        Args:
            subject: of the texts.
            number: id of the texts.
            at: time of measurement, nanoseconds since 1970.

        Returns:
            Whole seconds, as nanoseconds since 1970; 0 if there is no earlier report, or if a later one came first.
        """
        second = at // NANOS
        newest = _unpack(self.info.get(subject, 0))
        longest = newest.longest_step(subject[-1])
        if second > newest.last:
            step = second - newest.last
            usual, pauses = newest.pace(step, longest) if newest.last else (0, 0)
            continues = newest.texts == number and step <= longest
            if newest.texts and not continues:
                self.late_info[subject] = _pack(*newest)
            first = newest.first if continues else second
            self.info[subject] = _pack(number, usual, pauses, first, second)
            return None if continues else newest.last * NANOS
        if second >= newest.first and (newest.texts != number or not newest.is_sparse(subject[-1])):
            if newest.texts != number:
                self.info[subject] = _pack(0, newest.usual, newest.pauses, newest.last, newest.last)
            return None if newest.texts == number else 0
        late = _unpack(self.late_info.get(subject, 0))
        if late.texts == number and late.first <= second <= late.last + longest:
            self.late_info[subject] = _pack(number, 0, 0, late.first, max(second, late.last))
            return None
        if newest.texts == number and late.last < second and newest.first - second <= longest:
            self.info[subject] = _pack(number, newest.usual, newest.pauses, second, newest.last)
        elif late.texts == number and second < late.first <= second + longest:
            self.late_info[subject] = _pack(number, 0, 0, second, late.last)
        else:
            self.late_info[subject] = _pack(number, 0, 0, second, second)
        return 0

    def add_info(self, subject: Subject, number: int, at: int) -> None:
        """Record texts that the store has, and the time of their newest report in nanoseconds since 1970."""
        self.info[subject] = _pack(number, 0, 0, at // NANOS, at // NANOS)

    def trim(self) -> None:
        """Clear the caches that exceed the limit."""
        caches: tuple[set[int] | dict[Subject, int] | dict[Subject, tuple[int, int]], ...] = (
            self.absence_sets,
            self.info,
            self.late_info,
            self.views,
            self.inventory,
        )
        for cache in caches:
            if len(cache) > _KNOWN_LIMIT:
                cache.clear()
        if not self.views:
            self.view_lists.clear()


_KNOWN_ABSENCES = "SELECT id FROM absence_sets"

_KNOWN_INFO = (
    "SELECT cluster, machine, view, reader, lane, info_set, toUnixTimestamp64Nano(measured_at) FROM latest FINAL "
    "WHERE info_set != 0"
)

_KNOWN_INVENTORY = (
    "SELECT cluster, machine, argMax(inventory_set, reported_at), toUnixTimestamp64Nano(max(reported_at)) "
    "FROM inventory GROUP BY cluster, machine"
)


def load_known(handle: Handle) -> WriteCache:
    """Return the content that the store has, except for views."""
    known = WriteCache()
    known.absence_sets.update(row[0] for row in handle.query(_KNOWN_ABSENCES).result_rows)
    for *subject, number, at in handle.query(_KNOWN_INFO).result_rows:
        known.add_info(tuple(subject), number, at)
    for *subject, number, at in handle.query(_KNOWN_INVENTORY).result_rows:
        known.inventory[tuple(subject)] = (number, at)
    return known


AbsenceSets = SetCache[dict[str, Absent]]
"""Set id to metric to absence."""

_ABSENCES = "SELECT id, metrics, reasons, details FROM absence_sets WHERE id IN {ids:Array(UInt64)}"


def fetch_absences(handle: Handle, ids: set[int], cache: AbsenceSets) -> dict[int, dict[str, Absent]]:
    """Return the sets with these ids, from the cache or the store; fetched sets are added to the cache."""
    found, missing = cache.split(ids - {EMPTY_SET})
    if missing:
        fetched = {
            number: {
                metric: Absent(Reason(reason), detail)
                for metric, reason, detail in zip(metrics, reasons, details, strict=True)
            }
            for number, metrics, reasons, details in handle.query(_ABSENCES, parameters={"ids": missing}).result_rows
        }
        cache.keep(fetched)
        found.update(fetched)
    return found
