"""Snapshot of the newest samples in the table `latest` of an embedded store, and its recovery after a crash.

Each sample replaces its predecessor within seconds. So the store writes the newest rows from memory: in passes, of
which each write of samples does a part, and all at once before a query of the table. Until then `samples` has them.

The position of the table is an instant: `latest` has all rows that were received before it. It is a minute before the
newest of them, because rows from relays were received earlier than others of the same write. A row that was received
before the position, such as backlog, or a row after a step of the hub's clock, is written at once. So the rows that a
crash lost are those of `samples` from the position on.
"""

from collections.abc import Callable
from typing import Any

from gpufleet.model.aggregate import AGGREGATED
from gpufleet.model.catalogue import CATALOGUE, CORE_METRICS, Metric, ValueType
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.newest import START, NewestPlace
from gpufleet.stores.clickhouse.schema.tables import KNOWN_AFTER, LATEST, LATEST_POSITION, SUBJECT_KEY, SUBJECT_NUMBER

MAX_SECONDS = 120.0
"""Age of a row that is not in `latest` from which a pass begins, while rows are written."""

PART_ROWS = 65_536
"""Rows of a pass per write of samples: a pass over a million GPUs takes some 16 writes."""

SLACK_NS = 60 * NANOS
"""From the position to the newest receipt: more than batches usually wait in relays."""

_POSITION = f"SELECT max(toUnixTimestamp64Nano(received_at)) FROM {LATEST_POSITION.name}"  # noqa: S608 - a constant

_LOST = "received_at >= fromUnixTimestamp64Nano({position:Int64}, 'UTC')"

_NEWEST = f"SELECT count(), max(toUnixTimestamp64Nano(received_at)) FROM samples WHERE {_LOST}"  # noqa: S608 - as above


class LatestSnapshot:
    """Progress of the snapshot. One thread at a time.

    Attributes:
        position: nanoseconds since 1970; `latest` has every row that was received before it.
        place: place in memory from which the present pass continues.
        goal: the position after the present pass; None without one.
        recovered_losses: how many losses of `NewestSamples` were recovered from `samples`.
    """

    def __init__(self, position: int, monotonic: Callable[[], float]) -> None:
        self.position = position
        self.place: NewestPlace = START
        self.goal: int | None = None
        self.recovered_losses = 0
        self._monotonic = monotonic
        self._newest = 0
        self._since: float | None = None  # of the oldest row that the present pass can lack

    def __bool__(self) -> bool:
        """Return whether memory can have rows that the table lacks."""
        return self._since is not None or self.goal is not None

    @property
    def is_due(self) -> bool:
        """Whether the next part must be written."""
        return self.goal is not None or (self._since is not None and self._monotonic() - self._since > MAX_SECONDS)

    @property
    def horizon(self) -> int:
        """Receipt before which a row must be written at once: the position, also that after the present pass."""
        return self.position if self.goal is None else self.goal

    @property
    def last_position(self) -> int:
        """The position after all rows were written, at a stop."""
        return max(self.position, self._newest)

    def note(self, received_at: int) -> None:
        """Note rows that were added to memory; `received_at` is the newest receipt, nanoseconds since 1970."""
        if self._since is None:
            self._since = self._monotonic()
        self._newest = max(self._newest, received_at)

    def begin(self) -> None:
        """Begin a pass, which writes every row that was noted until now."""
        self.goal = max(self.position, self._newest - SLACK_NS)
        self.place, self._since = START, None

    def finish(self) -> None:
        """Note that the pass was written."""
        assert self.goal is not None
        self.position, self.goal = self.goal, None


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
