"""The table `latest` as it was until schema version 3, with a column a metric: what stands in it is taken over.

It is renamed, read into the new one, and dropped. Each step is told from what is there, so a start that was killed is
ended by the next; rows that are read twice collapse.
"""

from collections.abc import Container, Iterable, Sequence

from gpufleet.model.aggregate import AGGREGATED
from gpufleet.model.catalogue import CATALOGUE, CORE_METRICS, Metric, ValueType
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.tables import LATEST, SAMPLE_HEAD

ASIDE = "latest_until_3"
"""What the older table is called while it is read."""

_MARK = "tail_int_ids"
"""A column that only the older one has."""

_COLUMNS = """
SELECT table, name, type FROM system.columns WHERE database = currentDatabase() AND table IN {names:Array(String)}
"""


def columns_of(handle: Handle, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return table to column to type, of the tables that are there."""
    present: dict[str, dict[str, str]] = {}
    for table, column, type_ in handle.query(_COLUMNS, parameters={"names": list(names)}).result_rows:
        present.setdefault(table, {})[column] = type_
    return present


def run(handle: Handle, statements: Sequence[str]) -> list[str]:
    """Run statements that take as long as they take, and return them."""
    for statement in statements:
        handle.command(statement, settings={"max_execution_time": 0})
    return list(statements)


def set_aside(handle: Handle) -> list[str]:
    """Give the older table another name, where there is one; return the statements that did."""
    if _MARK not in columns_of(handle, [LATEST.name]).get(LATEST.name, {}):
        return []
    return run(handle, [f"RENAME TABLE {LATEST.name} TO {ASIDE}"])


def fill(handle: Handle) -> list[str]:
    """Take over what stands in the older table, and drop it; return the statements that did."""
    present = columns_of(handle, [ASIDE]).get(ASIDE)
    if present is None:
        return []
    return run(handle, [render_fill(present), f"DROP TABLE {ASIDE} SYNC"])


def render_fill(present: Container[str]) -> str:
    """Return the statement that writes the rows of an older table with these columns into `latest`."""
    core = [metric for metric in CORE_METRICS if metric.name in present]
    ints = [metric for metric in core if metric.type is not ValueType.FLOAT]
    floats = [metric for metric in core if metric.type is ValueType.FLOAT]
    chosen = {
        "tells": _tells(core),
        "int_ids": f"arrayConcat({_ids(ints)}, tail_int_ids)",
        "int_values": f"arrayConcat({_values(ints, 'toUInt64')}, tail_int_values)",
        "float_ids": f"arrayConcat({_ids(floats)}, tail_float_ids)",
        "float_values": f"arrayConcat({_values(floats, 'toFloat64')}, tail_float_values)",
    }
    head = [column.name for column in SAMPLE_HEAD]
    names = ", ".join([*head, LATEST.version, *chosen])
    made = ",\n    ".join([", ".join([*head, LATEST.version]), *chosen.values()])
    return f"INSERT INTO {LATEST.name} ({names})\nSELECT {made}\nFROM {ASIDE} FINAL"


def _cells(metrics: Iterable[Metric], convert: str) -> str:
    return ", ".join(f"{convert}(`{metric.name}`)" for metric in metrics)


def _ids(metrics: Sequence[Metric]) -> str:
    if not metrics:
        return "CAST([], 'Array(UInt16)')"
    ids = ", ".join(f"toUInt16({metric.id})" for metric in metrics)
    return f"arrayFilter((id, is_there) -> is_there, [{ids}], [{_cells(metrics, 'isNotNull')}])"


def _values(metrics: Sequence[Metric], convert: str) -> str:
    if not metrics:
        return f"CAST([], 'Array({convert[2:]})')"
    cells = _cells(metrics, convert)
    return f"arrayMap(cell -> assumeNotNull(cell), arrayFilter(cell -> isNotNull(cell), [{cells}]))"


def _tells(core: Sequence[Metric]) -> str:
    """Return the expression that is true where a row has a number of a metric that totals are made of."""
    told = [metric for metric in core if metric.name in AGGREGATED]
    tails = [CATALOGUE[name].id for name in AGGREGATED if CATALOGUE[name] not in CORE_METRICS]
    parts = [f"isNotNull(`{metric.name}`)" for metric in told]
    parts += [f"has({column}, {number})" for column in ("tail_int_ids", "tail_float_ids") for number in tails]
    return f"({' OR '.join(parts or ['false'])})"
