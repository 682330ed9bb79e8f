"""What was met in answers before, so that it is not asked for again.

What machines were found to have, until a write is about to tell otherwise.

How readers describe the views of machines.

The newest row of each key, of a few machines or many.
"""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, Self, TypeVar

import msgspec

from gpufleet.model.reading import Value
from gpufleet.model.stored.samples import Accepted
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.blocks import tellers
from gpufleet.stores.clickhouse.schema.sets import AbsenceSets, ById
from gpufleet.stores.clickhouse.schema.tables import VIEWS

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


Row = tuple[Any, ...]

_FEW = 16
"""Machines up to which the newest of the rows that are not merged yet is found here: FINAL takes longer for them."""

_OF_FEW = "optimize_move_to_prewhere = 0, max_threads = 1"
"""Of some hundred rows a part, in a piece or two, all columns are read at once sooner than some after others."""


def fetch_newest(
    handle: Handle,
    select: str,
    table: str,
    parameters: Mapping[str, Any],
    *,
    key: int,
    rank: Callable[[Row], Any],
    view: str | None = None,
) -> list[Row]:
    """Ask for rows of `machines` of a `cluster`; of those with the same first `key` cells the one of the highest rank.

    Args:
        handle: whom to ask.
        select: what, up to FROM.
        table: of which table; its version column ranks rows as `rank` does.
        parameters: those of the statement: `cluster`, `machines`, and what `select` has.
        key: how many cells say which row it is, the machine first; rows come in their order.
        rank: of two rows the newer one has the greater.
        view: of that view alone.
    """
    few = len(parameters["machines"]) <= _FEW
    asked = {**parameters, **({} if view is None else {"view": view})}
    words = [
        f"{select} FROM {table}{'' if few else ' FINAL'}",
        "WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}",
        *(["AND view = {view:String}"] if view is not None else []),
        *([f"SETTINGS {_OF_FEW}"] if few else []),
    ]
    newest: dict[Row, Row] = {}
    for row in handle.query(" ".join(words), parameters=asked).result_rows:
        before = newest.get(row[:key])
        if before is None or rank(row) >= rank(before):  # of equals the later one stands, as with FINAL
            newest[row[:key]] = row
    return [row for _, row in sorted(newest.items())]


Views = dict[tuple[str, str, str], View]
"""By machine, key and reader."""

_SELECT = """
SELECT machine, view, reader, kind, side, uuid, pci_address, instance, parent, index,
    toUnixTimestamp64Nano(reported_at)
"""


def fetch_views(handle: Handle, parameters: Mapping[str, Any]) -> Views:
    """Ask how each reader describes the views of `machines` of a `cluster`."""
    return {
        (machine, key, reader): View(
            kind=ViewKind(kind),
            side=Side(side),
            uuid=uuid,
            pci_address=pci_address,
            instance=instance,
            parent=parent,
            index=index,
        )
        for machine, key, reader, kind, side, uuid, pci_address, instance, parent, index, _ in fetch_newest(
            handle, _SELECT, "views", parameters, key=3, rank=itemgetter(-1)
        )
    }


def known_views(
    handle: Handle, remembered: Remembered[Views], may_keep: set[tuple[str, str]], cluster: str, machines: Iterable[str]
) -> Views:
    """Return the same, asking for the machines that are not remembered."""
    subjects = {(cluster, machine) for machine in machines}
    found = remembered.known(subjects)
    wanted = sorted(machine for _, machine in subjects - found.keys())
    if wanted:
        asked: dict[str, Views] = defaultdict(dict)
        for place, view in fetch_views(handle, {"cluster": cluster, "machines": wanted}).items():
            asked[place[0]][place] = view
        for machine, views in asked.items():
            found[cluster, machine] = views
            remembered.keep(may_keep, (cluster, machine), views, len(views))
    return {place: view for views in found.values() for place, view in views.items()}


class Met(msgspec.Struct, frozen=True):
    """Sets, which never change, and what machines were found to have, which holds until a write tells of it.

    Attributes:
        absences, texts: sets, by id.
        views: how machines' views are described.
        told_dims: whether there ever were values with dimensions, of machines whose newest samples have none.
    """

    absences: AbsenceSets
    texts: ById[dict[str, Value]]
    views: Remembered[Views]
    told_dims: Remembered[bool]

    @classmethod
    def nothing(cls, *, writes_alone: bool) -> Self:
        """Begin; `writes_alone` is whether nobody but this store writes to the tables."""
        return cls(ById(), ById(), Remembered(keeps=writes_alone), Remembered(keeps=writes_alone))

    @contextlib.contextmanager
    def telling(self, accepted: Sequence[Accepted], made: Sequence[tuple[str, Any]]) -> Iterator[None]:
        """Write batches within, of which Arrow tables were made."""
        views = {subject for name, table in made if name == VIEWS.name for subject in subjects_of(table)}
        with self.views.telling(views), self.told_dims.telling(tellers(accepted)):
            yield
