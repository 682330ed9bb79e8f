"""What machines were found to have, until a write is about to tell otherwise."""

import contextlib
import threading
from collections.abc import Collection, Iterator
from typing import Any, Generic, TypeVar

Subject = tuple[str, str]
"""(cluster, machine)."""

Content = TypeVar("Content")

_LIMIT = 50_000
"""Entries of a memory: views of 6,000 machines, about 30 MB."""


def subjects_of(table: Any) -> set[Subject]:
    """Return of which machines an Arrow table has rows."""
    return set(zip(table.column("cluster").to_pylist(), table.column("machine").to_pylist(), strict=True))


class Remembered(Generic[Content]):
    """Contents by machine; any thread may ask, one writes.

    A write lets go of the machines that it tells of before it begins, and nothing is kept of them until it is over:
    neither what is asked meanwhile nor what was asked before and is answered later. So what is here is what the
    tables have. That holds where nobody else writes to them: elsewhere nothing is kept. Bounded by forgetting
    everything when it is full.
    """

    def __init__(self, *, keeps: bool) -> None:
        """Begin with nothing; `keeps` is whether nobody else writes."""
        self._keeps = keeps
        self._contents: dict[Subject, tuple[Content, int]] = {}
        self._entries = 0
        self._told: frozenset[Subject] = frozenset()
        self._asked: dict[int, set[Subject]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def asking(self, subjects: Collection[Subject]) -> Iterator[set[Subject]]:
        """Ask the tables of machines within; yields those of which the answer may be kept, and `keep` takes it."""
        may_keep = set(subjects) if self._keeps else set()
        with self._lock:
            may_keep -= self._told
            self._asked[id(may_keep)] = may_keep
        try:
            yield may_keep
        finally:
            with self._lock:
                del self._asked[id(may_keep)]

    @contextlib.contextmanager
    def telling(self, subjects: Collection[Subject]) -> Iterator[None]:
        """Write of machines within."""
        told = frozenset(subjects)
        with self._lock:
            self._told = told
            for asked in self._asked.values():
                asked -= told
            for subject in self._contents.keys() & told:
                self._entries -= self._contents.pop(subject)[1]
        try:
            yield
        finally:
            with self._lock:
                self._told = frozenset()

    def known(self, subjects: Collection[Subject]) -> dict[Subject, Content]:
        """Return what is kept of machines; whatever a sample that was read before points at is in it."""
        with self._lock:
            return {subject: self._contents[subject][0] for subject in subjects if subject in self._contents}

    def keep(self, may_keep: set[Subject], subject: Subject, content: Content, entries: int = 1) -> None:
        """Keep what a machine was found to have, and of how many entries it is, if no write told of it meanwhile."""
        with self._lock:
            if subject not in may_keep or subject in self._contents or entries > _LIMIT:
                return
            if self._entries + entries > _LIMIT:
                self._contents, self._entries = {}, 0
            self._contents[subject] = content, entries
            self._entries += entries
