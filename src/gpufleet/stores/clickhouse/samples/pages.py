"""Pages of a cluster: consecutive machines, whose rows are read with one query each, and Arrow columns in numpy."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.columns import DictionaryColumn, NumericArray

PAGE_ROWS = 65_536
"""Maximum rows of `latest` per page, unless a single machine has more: about 40 MB with 40 values per row."""

_CLUSTERS = "SELECT DISTINCT cluster FROM latest ORDER BY cluster"

_MACHINES = """
SELECT machine, count() AS found FROM latest WHERE cluster = {cluster:String} GROUP BY machine ORDER BY machine
"""

_SETTINGS = "SETTINGS max_threads = 1, output_format_arrow_compression_method = 'none'"
"""One thread takes less memory and processor time, and compression takes a third of the time of the largest query."""


class MachineRange(msgspec.Struct, frozen=True):
    """Consecutive machines of a cluster.

    Attributes:
        cluster: its id.
        first, last: ids of the first and last machine.
    """

    cluster: str
    first: str
    last: str

    CONDITION = "cluster = {cluster:String} AND machine >= {first:String} AND machine <= {last:String}"

    def query(self, handle: Handle, statement: str, parameters: Mapping[str, Any] = {}) -> Any:
        """Run a query with `CONDITION`, and return an Arrow table."""
        bound = {"cluster": self.cluster, "first": self.first, "last": self.last, **parameters}
        return handle.query_arrow(f"{statement} {_SETTINGS}", parameters=bound)


def fetch_pages(handle: Handle, statement: str, size: int = PAGE_ROWS) -> Iterator[tuple[str, Any]]:
    """Yield the cluster and the Arrow table of each page with rows, for a statement with `MachineRange.CONDITION`.

    A thread fetches the next page while the caller uses this one, so the caller must not use the handle meanwhile.
    """
    pages = _fetch_pages(handle, statement, size)
    with ThreadPoolExecutor(1) as executor:
        following = executor.submit(next, pages, None)
        while (page := following.result()) is not None:
            following = executor.submit(next, pages, None)
            yield page


def _fetch_pages(handle: Handle, statement: str, size: int) -> Iterator[tuple[str, Any]]:
    for cluster in fetch_clusters(handle):
        for machines in fetch_machine_ranges(handle, cluster, size):
            rows = machines.query(handle, statement)
            if rows.num_rows:
                yield cluster, rows


def fetch_clusters(handle: Handle) -> list[str]:
    """Return the clusters with rows in `latest`."""
    return [row[0] for row in handle.query(_CLUSTERS).result_rows]


def fetch_machine_ranges(handle: Handle, cluster: str, size: int) -> Iterator[MachineRange]:
    """Return the machines of a cluster in ranges of up to `size` rows of `latest`."""
    table = handle.query_arrow(f"{_MACHINES} {_SETTINGS}", parameters={"cluster": cluster})
    if not table.num_rows:  # the embedded engine returns no columns then
        return
    machines: list[str] = table.column("machine").to_pylist()
    ends = np.cumsum(numbers_of(table, "found"))
    start, before = 0, 0
    while start < len(machines):
        end = max(int(np.searchsorted(ends, before + size, side="right")), start + 1)
        yield MachineRange(cluster, machines[start], machines[end - 1])
        start, before = end, int(ends[end - 1])


def numbers_of(table: Any, name: str) -> NumericArray:
    """Return a column of numbers."""
    column: NumericArray = table.column(name).to_numpy()
    return column


def texts_of(table: Any, name: str) -> DictionaryColumn:
    """Return a column of texts; a missing text has the position -1."""
    coded = table.column(name).combine_chunks().dictionary_encode()
    return DictionaryColumn(coded.dictionary.to_pylist(), coded.indices.fill_null(-1).to_numpy())


def lists_of(table: Any, name: str) -> tuple[NumericArray, NumericArray]:
    """Return a column of lists as the length of each row's list, and the elements of all lists, row after row."""
    lists = table.column(name).combine_chunks()
    return np.diff(lists.offsets.to_numpy()), lists.flatten().to_numpy(zero_copy_only=False)


def match_rows(left: Sequence[DictionaryColumn], right: Sequence[DictionaryColumn]) -> NumericArray:
    """Return the row of `right` with the same texts as each row of `left`, -1 without one."""
    keys, others = np.zeros(len(left[0].rows), np.int64), np.zeros(len(right[0].rows), np.int64)
    is_known = np.ones(len(others), np.bool_)
    for mine, other in zip(left, right, strict=True):
        numbers = {text: number for number, text in enumerate(mine.texts)}
        places = np.array([numbers.get(text, -1) for text in other.texts], np.int64)[other.rows]
        is_known &= places >= 0
        keys, others = keys * len(numbers) + mine.rows, others * len(numbers) + places
    rows = np.flatnonzero(is_known)
    if not len(rows):
        return np.full(len(keys), -1)
    rows = rows[np.argsort(others[rows], kind="stable")]
    found = np.searchsorted(others[rows], keys)
    found[found == len(rows)] = 0
    return np.where(others[rows][found] == keys, rows[found], -1)


class TextNumbers:
    """Distinct texts in order of arrival."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def texts(self) -> Sequence[str]:
        """The texts by number."""
        return list(self._numbers)

    def assign(self, texts: Iterable[str]) -> NumericArray:
        """Return the number of each text; new texts get the next numbers."""
        return np.array([self._numbers.setdefault(text, len(self._numbers)) for text in texts], np.int32)
