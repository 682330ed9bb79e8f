"""Minutes and hours as schema version 3 kept them, which had an array element for each metric: carried over.

A partition at a time, and what was carried over is dropped: where that is stopped it goes on at the next start. A
partition that was carried over and not dropped yet is carried over again, to the same rows.
"""

from gpufleet.model.catalogue import Metric, MetricKind, Storage, ValueType
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.tables import STATES_1H, STATES_1M, TELLER, WINDOWS_1H, WINDOWS_1M, plain
from gpufleet.stores.clickhouse.schema.tables import Table

_PARTITIONS = """
SELECT DISTINCT table, partition_id FROM system.parts
WHERE database = currentDatabase() AND active AND table = {table:String} ORDER BY partition_id DESC
"""

_LONGEST_SECONDS = 3600
"""One partition may take."""


def carry_over(handle: Handle) -> list[str]:
    """Carry over what there is of version 3, the newest first, and return the statements that did."""
    statements: list[str] = []
    for name, table, select in _SOURCES:
        if not handle.query(f"EXISTS TABLE {name}").result_rows[0][0]:
            continue
        columns = ", ".join(f"`{column}`" for column in select)
        values = ", ".join(select.values())
        for _, partition in handle.query(_PARTITIONS, parameters={"table": name}).result_rows:
            copied = f"SELECT {values} FROM {name} WHERE _partition_id = '{partition}'"  # noqa: S608 - names are ours
            statements += [
                f"INSERT INTO {table.name} ({columns}) {copied}",
                f"ALTER TABLE {name} DROP PARTITION ID '{partition}'",
            ]
            for statement in statements[-2:]:
                handle.command(statement, settings={"max_execution_time": _LONGEST_SECONDS, "max_threads": 1})
        statements.append(f"DROP TABLE {name}")
        handle.command(statements[-1])
    return statements


def _core(metric: Metric) -> dict[str, str]:
    match metric.kind:
        case MetricKind.GAUGE:
            place = f"indexOf(gauge_ids, {metric.id})"
            type_ = "toUInt64" if metric.type is ValueType.INT else "toFloat64"
            told = {
                "min": f"{type_}(gauge_min[{place}])",
                "max": f"{type_}(gauge_max[{place}])",
                "avg": f"gauge_sum[{place}] / gauge_count[{place}]",
            }
            kept = {part: f"if(has(gauge_ids, {metric.id}), {value}, NULL)" for part, value in told.items()}
            kept["count"] = f"gauge_count[{place}]"
        case MetricKind.COUNTER:
            kind = "float_counter" if metric.type is ValueType.FLOAT else "int_counter"
            place = f"indexOf({kind}_ids, {metric.id})"
            kept = {
                part: f"if(has({kind}_ids, {metric.id}), {kind}_{part}[{place}], NULL)" for part in ("last", "increase")
            }
        case _:
            place = f"indexOf(state_ids, {metric.id})"
            kept = {"last": f"if(has(state_ids, {metric.id}), state_last[{place}], NULL)"}
    return {f"{metric.name}_{part}": value for part, value in kept.items()}


def _tail(kind: MetricKind, ids: str, parts: dict[str, str]) -> dict[str, str]:
    known = [metric.id for metric in plain(kind, Storage.TAIL)]
    picked = {part: f"arrayFilter((v, i) -> i IN {known}, {value}, {ids})" for part, value in parts.items()}
    columns = {f"tail_{kind.value}_{part}": value for part, value in picked.items()}
    return {f"tail_{kind.value}_ids": f"arrayFilter(i -> i IN {known}, {ids})", **columns}


def _windows() -> dict[str, str]:
    same = {name: name for name in (*TELLER.split(", "), "at", "version", "samples")}
    for kind in (MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.STATE):
        for metric in plain(kind, Storage.CORE):
            same |= _core(metric)
    means = "arrayMap((s, n) -> s / n, gauge_sum, gauge_count)"
    gauges = {"min": "gauge_min", "max": "gauge_max", "avg": means, "count": "gauge_count"}
    counters = {part: f"int_counter_{part}" for part in ("last", "increase")}
    return {
        **same,
        **_tail(MetricKind.GAUGE, "gauge_ids", gauges),
        **_tail(MetricKind.COUNTER, "int_counter_ids", counters),
        **_tail(MetricKind.STATE, "state_ids", {"last": "state_last"}),
    }


_STATES = {name: name for name in (*TELLER.split(", "), "metric", "state", "at", "version", "seconds")}

_SOURCES: tuple[tuple[str, Table, dict[str, str]], ...] = (
    ("samples_1h", WINDOWS_1H, _windows()),
    ("samples_1m", WINDOWS_1M, _windows()),
    ("state_seconds_1h", STATES_1H, _STATES),
    ("state_seconds_1m", STATES_1M, _STATES),
)
