"""Rows of `latest` that are written later, and their recovery from `samples` after a crash.

Each sample replaces its predecessor in `latest` within seconds. So an embedded store writes only the newest row of each
subject, when a query needs the table, and at least every `MAX_SECONDS`. Until then `samples` has them durably.

The position of the table is an instant: `latest` has all rows that were received before it. It is a minute before the
newest of them, because rows from relays were received earlier than others of the same write. A row that was received
before the position, such as backlog, or a row after a step of the hub's clock, is written at once. So the rows that a
crash lost are those of `samples` from the position on.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpufleet.model.aggregate import AGGREGATED
from gpufleet.model.catalogue import CATALOGUE, CORE_METRICS, Metric, ValueType
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.columns import Columns, NumericArray
from gpufleet.stores.clickhouse.schema.tables import KNOWN_AFTER, LATEST, LATEST_POSITION, SUBJECT_KEY, SUBJECT_NUMBER

MAX_SECONDS = 120.0
"""Maximum age of a row that is not in `latest`, while rows are written."""

MAX_BYTES = 96 << 20
"""Maximum size of such rows: those of some 100,000 GPUs with 40 values."""

SLACK_NS = 60 * NANOS
"""From the position to the newest receipt: more than batches usually wait in relays."""

_POSITION = f"SELECT max(toUnixTimestamp64Nano(received_at)) FROM {LATEST_POSITION.name}"  # noqa: S608 - a constant

_LOST = "received_at >= fromUnixTimestamp64Nano({position:Int64}, 'UTC')"

_NEWEST = f"SELECT count(), max(toUnixTimestamp64Nano(received_at)) FROM samples WHERE {_LOST}"  # noqa: S608 - as above


class DeferredRows:
    """Rows of `latest` that are not written yet. One thread at a time.

    Attributes:
        position: nanoseconds since 1970; `latest` has every row that was received before it.
    """

    def __init__(self, position: int, monotonic: Callable[[], float], limit: int = MAX_BYTES) -> None:
        self.position = position
        self._limit = limit
        self._monotonic = monotonic
        self._tables: list[Any] = []
        self._ranks: list[NumericArray] = []
        self._size = 0
        self._newest = 0
        self._is_late = self._is_full = False
        self._since = 0.0

    def __bool__(self) -> bool:
        return bool(self._tables)

    @property
    def is_due(self) -> bool:
        """Whether the rows must be written now."""
        is_old = self._monotonic() - self._since > MAX_SECONDS
        return bool(self) and (is_old or self._is_late or self._is_full)

    @property
    def next_position(self) -> int:
        """The position after the rows are written."""
        return max(self.position, self._newest - SLACK_NS)

    @property
    def last_position(self) -> int:
        """The position after the rows are written, at a stop."""
        return max(self.position, self._newest)

    def add(self, table: Any, samples: Columns, latest: Columns) -> None:
        """Add rows as an Arrow table of `latest`; `samples` and `latest` are their columns."""
        if not self:
            self._since = self._monotonic()
        names = (samples[SUBJECT_NUMBER.name], latest["known_at"], latest["measured_at"])
        received_at = np.asarray(latest["received_at"])
        self._tables.append(table)
        self._ranks.append(np.array([np.asarray(column, np.int64) for column in names]))
        self._size += table.nbytes
        self._newest = max(self._newest, int(received_at.max()))
        self._is_late = self._is_late or int(received_at.min()) < self.position
        if self._size > self._limit:
            self._reduce()
            self._is_full = self._size > self._limit // 2  # otherwise there is space until rows are old

    def newest(self) -> Any:
        """Return the newest row of each subject, as an Arrow table."""
        self._reduce()
        return self._tables[0]

    def _reduce(self) -> None:
        """Remove rows that are not the newest of their subject."""
        arrow = importlib.import_module("pyarrow")
        ranks = np.concatenate(self._ranks, axis=1)
        subject, known_at, measured_at = ranks
        order = np.lexsort((measured_at, known_at, subject))
        is_newest = np.zeros(len(order), np.bool_)
        is_newest[order[np.append(np.diff(subject[order]) != 0, True)]] = True
        parts, first = [], 0
        for table in self._tables:
            parts.append(table.filter(arrow.array(is_newest[first : first + table.num_rows])))
            first += table.num_rows
        self._tables = [arrow.concat_tables(parts).unify_dictionaries().combine_chunks()]
        self._ranks, self._size = [ranks[:, is_newest]], self._tables[0].nbytes

    def clear(self) -> None:
        """Note that the rows were written."""
        self.position = self.next_position
        self._tables, self._ranks, self._size = [], [], 0
        self._is_late = self._is_full = False


def fetch_position(handle: Handle) -> int:
    """Return the position of `latest`, 0 if it was never written."""
    return int(handle.query(_POSITION).result_rows[0][0])


def recover_latest(handle: Handle, position: int) -> int:
    """Insert the rows of `latest` that a crash lost, and return its position after that."""
    bound: dict[str, Any] = {"parameters": {"position": position}, "settings": {"max_execution_time": 0}}
    count, newest = handle.query(_NEWEST, **bound).result_rows[0]
    if count:
        handle.command(RECOVERY, **bound)
    return max(position, int(newest) - SLACK_NS)


def _cells(metrics: list[Metric], stored: str) -> str:
    """Return the SQL array of the ids and present values of core metrics."""
    cells = ", ".join(f"({metric.id}, {stored}(`{metric.name}`))" for metric in metrics)
    return f"arrayFilter(cell -> isNotNull(cell.2), [{cells}])"


def render_recovery() -> str:
    """Return the statement of `recover_latest`."""
    floats = [metric for metric in CORE_METRICS if metric.type is ValueType.FLOAT]
    ints = [metric for metric in CORE_METRICS if metric.type is not ValueType.FLOAT]
    totals = ", ".join(str(CATALOGUE[name].id) for name in AGGREGATED)
    expressions = {
        **{name: name for name in SUBJECT_KEY},
        "known_at": f"received_at + toIntervalNanosecond({KNOWN_AFTER.name})",
        "has_totals": f"hasAny(arrayConcat(int_ids, float_ids), [{totals}])",
    }
    for kind, metrics, stored in (("int", ints, "toUInt64"), ("float", floats, "toFloat64")):
        cells = _cells(metrics, stored)
        expressions[f"{kind}_ids"] = f"arrayConcat(arrayMap(cell -> toUInt16(cell.1), {cells}), tail_{kind}_ids)"
        expressions[f"{kind}_values"] = (
            f"arrayConcat(arrayMap(cell -> assumeNotNull(cell.2), {cells}), tail_{kind}_values)"
        )
    names = [column.name for column in LATEST.columns]
    columns = ",\n    ".join(f"{expressions.get(name, name)} AS {name}" for name in names)
    numbers = f"SELECT {SUBJECT_NUMBER.name} FROM samples WHERE {_LOST}"  # noqa: S608 - as above
    return (
        f"INSERT INTO {LATEST.name} ({', '.join(names)})\nSELECT\n    {columns}\n"  # noqa: S608 - as above
        f"FROM samples INNER JOIN (SELECT * FROM subjects WHERE number IN ({numbers})) AS named\n"
        f"ON samples.{SUBJECT_NUMBER.name} = named.number\nWHERE {_LOST}"
    )


RECOVERY = render_recovery()
