"""Absence and info sets, limited to the metrics of a request, and kept by id.

A set never changes, so a known set is not read again. Sets with the same content after the limitation have the same
number: a fleet has many sets of texts, but few combinations of GPU name and VBIOS version.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.columns import NO_NUMBER, DictionaryColumn, IdIndex, NumericArray
from gpufleet.stores.clickhouse.schema.sets import EMPTY_SET

T = TypeVar("T")

EMPTY_CONTENT = 0
"""Number of the content without entries."""

IDS_PER_QUERY = 5_000
"""Maximum number of set ids in a query: a server accepts 128 KiB per parameter."""

MAX_IDS = 4_000_000
"""Ids above which a projection is dropped, and read again: a million GPUs with four sets each, 24 bytes per id."""

MAX_CONTENT_BYTES = 64 << 20
"""Estimated size of the contents above which a projection is dropped."""

_CONTENT_BYTES, _ENTRY_BYTES = 400, 100

_MAX_REQUESTS = 4
"""Requested combinations of metrics whose projections are kept: the rules make one."""

SetContent = Mapping[str, str]
"""Metric to text or to reason."""

FoundSet = tuple[int, SetContent]
"""Id of a set, and its content."""


class SetProjection:
    """Contents of sets by number, limited to some metrics. Thread-safe."""

    def __init__(self, metrics: Collection[str]) -> None:
        self.metrics = sorted(metrics)
        self._lock = threading.Lock()
        self._index = IdIndex()
        self._numbers = np.empty(0, np.int32)  # of the content of each id of the index
        self._contents: list[SetContent] = [{}]
        self._known: dict[tuple[tuple[str, str], ...], int] = {(): EMPTY_CONTENT}
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether it exceeds a limit."""
        return len(self._index) > MAX_IDS or self._size > MAX_CONTENT_BYTES

    def find(self, ids: NumericArray) -> NumericArray:
        """Return the number of the content of each set (ids as uint64), `NO_NUMBER` for an unknown set."""
        numbers = np.full(len(ids), EMPTY_CONTENT, np.int32)
        rows = np.flatnonzero(ids != EMPTY_SET)
        with self._lock:
            places = self._index.find(ids[rows].view(np.int64))
            known = places != NO_NUMBER
            numbers[rows] = NO_NUMBER
            numbers[rows[known]] = self._numbers[places[known]]
        return numbers

    def add(self, found: Iterable[FoundSet]) -> None:
        """Add sets."""
        contents = dict(found)
        ids = np.fromiter(contents, np.uint64, len(contents)).view(np.int64)
        with self._lock:
            numbers = np.array([self._number_of(content) for content in contents.values()], np.int32)
            _, firsts = self._index.assign(ids)
            self._numbers = np.concatenate([self._numbers, numbers[firsts]])

    def contents(self, numbers: NumericArray) -> dict[int, SetContent]:
        """Return number to content, for the numbers in a column."""
        present = np.flatnonzero(np.bincount(numbers)).tolist()
        return {number: self._contents[number] for number in present}

    def _number_of(self, content: SetContent) -> int:
        key = tuple(sorted(content.items()))
        number = self._known.setdefault(key, len(self._contents))
        if number == len(self._contents):
            self._contents.append(content)
            self._size += _CONTENT_BYTES + sum(_ENTRY_BYTES + len(text) for text in content.values())
        return number


class ProjectionCache:
    """Projections of the sets of a store, by kind of set and requested metrics. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._projections: dict[tuple[str, frozenset[str]], SetProjection] = {}

    def of(self, kind: str, metrics: Iterable[str]) -> SetProjection:
        """Return the projection of sets of a kind to some metrics; an empty one if there is none, or it was full."""
        key = kind, frozenset(metrics)
        with self._lock:
            found = self._projections.pop(key, None)
            if found is None or found.is_full:
                found = SetProjection(key[1])
            self._projections[key] = found  # the last in order of use
            while len(self._projections) > _MAX_REQUESTS:
                del self._projections[next(iter(self._projections))]
        return found


_ABSENCES = "SELECT id, metrics, reasons FROM absence_sets WHERE id IN {ids:Array(UInt64)}"

_INFO = """
SELECT info_set, groupArrayIf(metric, metric IN {metrics:Array(String)}),
    groupArrayIf(text, metric IN {metrics:Array(String)})
FROM info
WHERE cluster = {cluster:String} AND machine >= {first:String} AND machine <= {last:String}
    AND info_set IN {ids:Array(UInt64)}
GROUP BY info_set
"""


def read_reasons(handle: Handle, projection: SetProjection, ids: NumericArray) -> NumericArray:
    """Return the number of the content of each row's absence set; unknown sets are read.

    The content is metric to reason. A set that the store lacks counts as empty, and is read again at the next call.
    """
    numbers = projection.find(ids)
    missing = np.unique(ids[numbers == NO_NUMBER]).tolist()
    if missing:
        projection.add(_fetch_reasons(handle, missing, frozenset(projection.metrics)))
        numbers = projection.find(ids)
    return np.where(numbers == NO_NUMBER, EMPTY_CONTENT, numbers)


def read_texts(
    handle: Handle, cluster: str, projection: SetProjection, machine: DictionaryColumn, ids: NumericArray
) -> NumericArray:
    """Return the number of the content of each row's info set, of rows of these machines; unknown sets are read.

    The content is metric to text. Otherwise as `read_reasons`.
    """
    if not projection.metrics:
        return np.full(len(ids), EMPTY_CONTENT, np.int32)
    numbers = projection.find(ids)
    rows = np.flatnonzero(numbers == NO_NUMBER)
    if len(rows):
        machines = [machine.texts[place] for place in machine.rows[rows].tolist()]
        sets = sorted(set(zip(machines, ids[rows].tolist(), strict=True)))
        projection.add(_fetch_texts(handle, cluster, sets, projection.metrics))
        numbers = projection.find(ids)
    return np.where(numbers == NO_NUMBER, EMPTY_CONTENT, numbers)


def _fetch_reasons(handle: Handle, ids: Sequence[int], metrics: Collection[str]) -> Iterator[FoundSet]:
    for some in _slices(ids):
        for number, names, reasons in handle.query(_ABSENCES, parameters={"ids": some}).result_rows:
            yield number, {name: why for name, why in zip(names, reasons, strict=True) if name in metrics}


def _fetch_texts(
    handle: Handle, cluster: str, sets: Sequence[tuple[str, int]], metrics: Sequence[str]
) -> Iterator[FoundSet]:
    """Yield info sets, given in order of their machines, with their texts of these metrics."""
    for some in _slices(sets):
        parameters = {"cluster": cluster, "first": some[0][0], "last": some[-1][0], "metrics": metrics}
        bound = {**parameters, "ids": sorted({number for _, number in some})}
        for number, names, texts in handle.query(_INFO, parameters=bound).result_rows:
            yield number, dict(zip(names, texts, strict=True))


def _slices(ordered: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(ordered), IDS_PER_QUERY):
        yield ordered[start : start + IDS_PER_QUERY]
