"""Newest samples of all machines in memory. Pure.

A subject is a view of a machine as read by one reader in one lane. Its newest sample is the last in the hub's order of
reports, so rows can be added in any order, and again, with the same result.
"""

import itertools
import logging
import threading
from collections.abc import Collection, Iterable, Sequence

import msgspec
import numpy as np

from gpufleet.model.catalogue import Metric
from gpufleet.stores.clickhouse.samples.cluster_samples import (
    NEVER,
    ClusterSamples,
    MachineCopy,
    SubjectPlaces,
    UnsavedCopy,
)
from gpufleet.stores.clickhouse.samples.newest_rows import NewestPage, NewestRow, SharedGpu, ValueGroup
from gpufleet.stores.clickhouse.schema.columns import Columns, DictionaryColumn, NumericArray, dictionary_of

LOG = logging.getLogger(__name__)

NewestPlace = tuple[str, int]
"""Place in memory: a cluster, and the first subject."""

START: NewestPlace = ("", 0)

SIZE_LIMIT = 2 << 30
"""Bytes above which the largest cluster is left to the store until a restart: no cluster evicts a smaller one."""


class NewestSamples:
    """Newest samples of the subjects of a store, by number. Thread-safe.

    A start loads them from the store, while rows that are written are added. Before the end of the load, and for a
    cluster that does not fit, there are no answers: the store has to be queried.

    Attributes:
        losses: how many times rows were dropped that the table `latest` may lack.
    """

    def __init__(self, limit: int = SIZE_LIMIT) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._content = NewestContent()
        self.losses = 0

    @property
    def content(self) -> "NewestContent":
        """The present content, which the next `drop` replaces."""
        return self._content

    @property
    def size(self) -> int:
        """Size in bytes, estimated."""
        return self._content.size

    def drop(self) -> None:
        """Drop all rows, because the content of the store is unknown."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self.losses += any(one.has_unsaved for one in self._content.clusters.values())
        self._content = NewestContent()

    def add(
        self,
        numbers: NumericArray,
        head: Columns,
        groups: Sequence[ValueGroup],
        to: "NewestContent | None" = None,
        *,
        is_unsaved: bool = False,
    ) -> None:
        """Add rows that the store has, in any order.

        Args:
            numbers: number of each row's subject.
            head: the columns of `latest` without values.
            groups: the values of all rows, in the same order.
            to: the content, if it is not the present one.
            is_unsaved: whether the table `latest` lacks the rows.
        """
        with self._lock:
            content = self._content if to is None else to
            try:
                content.add(numbers, head, groups, is_unsaved=is_unsaved)
                self.losses += content.bound(self._limit)
            except BaseException:  # some of the rows may be there
                if content is self._content:
                    self._drop()
                    self.losses += is_unsaved
                raise

    def copy_unsaved(self, place: NewestPlace, limit: int) -> "UnsavedRows | None":
        """Return up to `limit` rows of a cluster that the table `latest` can lack, from a place on."""
        with self._lock:
            for cluster in sorted(self._content.clusters):
                if cluster < place[0]:
                    continue
                samples = self._content.clusters[cluster]
                copied = samples.copy_unsaved(place[1] if cluster == place[0] else 0, limit)
                if copied is not None:
                    return UnsavedRows(cluster, samples, copied)
        return None

    def mark_saved(self, rows: "UnsavedRows") -> None:
        """Note that the table has rows. None of them may have been written since they were copied."""
        with self._lock:
            rows.samples.mark_saved(rows.copied.places)

    def omits(self, clusters: DictionaryColumn) -> NumericArray:
        """Return for each row whether its cluster is left to the store."""
        is_omitted = np.array([one in self._content.omitted for one in clusters.texts], np.bool_)
        return is_omitted[clusters.rows]

    def read(
        self, cluster: str, machines: Iterable[str], view: str | None = None, metrics: Collection[str] | None = None
    ) -> list[NewestRow] | None:
        """Return the newest samples of machines (of one view), or None if the store must be queried.

        Rows have the values of `metrics`, or all.
        """
        copies: list[MachineCopy] = []
        with self._lock:
            content = self._content
            if not content.has(cluster):
                return None
            found = content.clusters.get(cluster)
            if found is not None:
                copies = [copy for one in dict.fromkeys(machines) if (copy := found.copy(one, view)) is not None]
        return [row for one in copies for row in one.rows(metrics)]

    def pages(self, cluster: str) -> "NewestPages | None":
        """Return the newest samples of a cluster for reading in columns, or None if the store must be queried."""
        with self._lock:
            if not self._content.has(cluster):
                return None
            return NewestPages(self._lock, self._content.clusters.get(cluster, ClusterSamples()))

    def shared_gpus(self, since: int) -> list[SharedGpu] | None:
        """Return the GPUs with a UUID that several machines reported since then, or None if the store must be queried.

        `since` is a place in the order of reports.
        """
        with self._lock:
            if not self._content.is_loaded or self._content.omitted:
                return None
            clusters = list(self._content.clusters.items())
            gpus = [one.named_gpus(since) for _, one in clusters]
        chosen = _shared(gpus)
        newest: dict[tuple[str, str, str], tuple[int, int]] = {}
        with self._lock:
            for (cluster, samples), (places, _, _), rows in zip(clusters, gpus, chosen, strict=True):
                for machine, view, *times in samples.reports(places[rows]):
                    gpu = view, cluster, machine
                    newest[gpu] = max(newest.get(gpu, (NEVER, 0)), (times[0], times[1]))
        return [
            SharedGpu(cluster, machine, view, received_at)
            for (view, cluster, machine), (_, received_at) in sorted(newest.items())
        ]


def _shared(gpus: Sequence[tuple[NumericArray, NumericArray, NumericArray]]) -> list[NumericArray]:
    """Return the rows of each part, given as `named_gpus` does, with a key that another machine has too."""
    if not gpus:
        return []
    counts = [len(places) for places, _, _ in gpus]
    hashes = np.concatenate([keys for _, _, keys in gpus])
    part = np.repeat(np.arange(len(gpus)), counts)
    machines = part << np.int64(32) | np.concatenate([machines for _, machines, _ in gpus])
    order = np.argsort(hashes)
    is_first = np.diff(hashes[order], prepend=0, append=0) != 0
    is_first[[0, -1]] = True
    firsts = np.flatnonzero(is_first[:-1])
    if not len(firsts):
        return [np.empty(0, np.int64)] * len(gpus)
    ordered = machines[order]
    is_shared = np.minimum.reduceat(ordered, firsts) != np.maximum.reduceat(ordered, firsts)
    rows = np.sort(order[np.repeat(is_shared, np.diff([*firsts, len(order)]))])
    starts = np.cumsum([0, *counts])
    return [rows[(rows >= first) & (rows < end)] - first for first, end in itertools.pairwise(starts.tolist())]


class NewestContent:
    """Newest samples of all clusters. Not thread-safe.

    Attributes:
        clusters: id to samples.
        omitted: clusters that do not fit.
        is_loaded: whether it has all rows of the store, except for those of omitted clusters.
    """

    def __init__(self) -> None:
        self.clusters: dict[str, ClusterSamples] = {}
        self.omitted: set[str] = set()
        self.is_loaded = False
        self._places = SubjectPlaces()

    @property
    def size(self) -> int:
        """Size in bytes, estimated."""
        return self._places.size + sum(one.size for one in self.clusters.values())

    def has(self, cluster: str) -> bool:
        """Return whether all rows of a cluster are there."""
        return self.is_loaded and cluster not in self.omitted

    def add(self, numbers: NumericArray, head: Columns, groups: Sequence[ValueGroup], *, is_unsaved: bool) -> None:
        """Add rows; see `NewestSamples.add`."""
        column = dictionary_of(head["cluster"])
        for code, cluster in enumerate(column.texts):
            if cluster in self.omitted:
                continue
            rows = np.flatnonzero(column.rows == code)
            if len(rows):
                samples = self.clusters.setdefault(cluster, ClusterSamples())
                samples.add(self._places, numbers, head, groups, rows, is_unsaved=is_unsaved)

    def bound(self, limit: int) -> bool:
        """Omit the largest clusters above a size. Return whether the table `latest` can lack any of their rows."""
        has_lost = False
        while self.clusters and self.size > limit:
            largest = max(self.clusters, key=lambda one: self.clusters[one].size)
            LOG.warning(
                "cluster %s: its newest samples are read from the store until the next start, because all newest "
                "samples in memory would take more than %d MiB",
                largest,
                limit >> 20,
            )
            has_lost |= self.clusters.pop(largest).has_unsaved
            self.omitted.add(largest)
        return has_lost


class UnsavedRows(msgspec.Struct, frozen=True):
    """Rows of a cluster that the table `latest` can lack, copied from memory."""

    cluster: str
    samples: ClusterSamples
    copied: UnsavedCopy

    @property
    def end(self) -> NewestPlace:
        """Place after these rows."""
        return self.cluster, int(self.copied.places.max()) + 1

    @property
    def columns(self) -> Columns:
        """Columns of `latest`."""
        return self.copied.columns(self.cluster)


class NewestPages:
    """Newest samples of a cluster in columns. Thread-safe."""

    def __init__(self, lock: threading.Lock, samples: "ClusterSamples") -> None:
        self._lock = lock
        self._samples = samples

    def ranges(self, size: int) -> list[list[str]]:
        """Return the machines in order of their ids, in lists with up to `size` subjects or one machine."""
        with self._lock:
            counts = self._samples.subject_counts()
        machines = sorted(counts)
        ends = np.cumsum(np.fromiter((counts[one] for one in machines), np.int64, len(machines)))
        found: list[list[str]] = []
        start, before = 0, 0
        while start < len(machines):
            end = max(int(np.searchsorted(ends, before + size, side="right")), start + 1)
            found.append(machines[start:end])
            start, before = end, int(ends[end - 1])
        return found

    def read(self, machines: Sequence[str], metrics: Sequence[Metric], kinds: Sequence[str]) -> NewestPage:
        """Return the newest samples of machines, and of their views of some kinds, with the values of metrics."""
        with self._lock:
            copied = self._samples.copy_columns(machines, metrics, kinds)
        return copied.page(metrics)
