"""Values of a machine's metrics over time, in steps."""

from collections import defaultdict
from collections.abc import Sequence

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage, ValueType
from gpufleet.model.errors import StoreError
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import Value
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.latest import value_of

MAX_POINTS = 11_000
"""Most steps a series may have."""

MAX_ROWS = 2_000_000
"""Most rows a question may come to, over all views and readers."""

Series = dict[tuple[str | None, str], list[tuple[int, Value]]]

_SERIES = """
SELECT view, reader, intDiv(toUnixTimestamp64Nano(measured_at) - {{start:Int64}}, {{step:Int64}}) AS number,
    {aggregates}
FROM samples FINAL
WHERE cluster = {{cluster:String}} AND machine = {{machine:String}} AND provenance = {{provenance:String}}
    AND measured_at >= fromUnixTimestamp64Nano({{start:Int64}}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({{end:Int64}}, 'UTC')
GROUP BY view, reader, number
ORDER BY view, reader, number
SETTINGS do_not_merge_across_partitions_select_final = 1, max_result_rows = {max_rows}
"""


def fetch_series(
    handle: Handle,
    cluster: str,
    machine: str,
    metrics: Sequence[str],
    start: int,
    end: int,
    step: int,
    provenance: Provenance,
) -> Series:
    """Ask for (view key, metric) to (start of step, value), as `ports.Store.series` says.

    A series is of one reader: where several measured the same metric of a view, the one that measured in
    most steps; readers are never mixed into one series.

    Raises:
        StoreError: for a metric that has no series, a span or step that makes none, or too many points.
    """
    asked = _checked(metrics, start, end, step)
    if not asked:
        return {}
    query = _SERIES.format(aggregates=",\n    ".join(map(_aggregate, asked)), max_rows=MAX_ROWS)
    parameters = {
        "cluster": cluster,
        "machine": machine,
        "provenance": provenance.value,
        "start": start,
        "end": end,
        "step": step,
    }
    found: dict[tuple[str, str], dict[str, list[tuple[int, Value]]]] = defaultdict(dict)
    for view, reader, number, *values in handle.query(query, parameters=parameters).result_rows:
        for metric, value in zip(asked, values, strict=True):
            if value is not None:
                points = found[view, metric.name].setdefault(reader, [])
                points.append((start + number * step, _value(metric, value)))
    return {
        (view or None, name): max(sorted(readers.items()), key=lambda item: len(item[1]))[1]
        for (view, name), readers in found.items()
    }


def _checked(metrics: Sequence[str], start: int, end: int, step: int) -> list[Metric]:
    if step <= 0:
        raise StoreError(f"series: a step of {step} ns: write one greater than 0")
    if end <= start:
        raise StoreError(f"series: the end ({end}) is not after the start ({start})")
    points = -(-(end - start) // step)
    if points > MAX_POINTS:
        enough = -(-(end - start) // MAX_POINTS) / NANOS
        raise StoreError(
            f"series: {points} steps, the limit is {MAX_POINTS}: ask for a step of at least {enough:.3f} s, "
            "or a shorter span"
        )
    asked = []
    for name in dict.fromkeys(metrics):
        metric = CATALOGUE.get(name)
        if metric is None:
            raise StoreError(f"series: {name[:100]!r} is not in the catalogue")
        if metric.storage not in (Storage.CORE, Storage.TAIL):
            raise StoreError(f"series: {name} has no series: it has dimensions or is a text")
        asked.append(metric)
    return asked


def _aggregate(metric: Metric) -> str:
    column = f"`{metric.name}`"
    if metric.storage is Storage.TAIL:
        tail = "tail_float" if metric.type is ValueType.FLOAT else "tail_int"
        column = f"if(has({tail}_ids, {metric.id}), {tail}_values[indexOf({tail}_ids, {metric.id})], NULL)"
    return f"avg({column})" if metric.kind is MetricKind.GAUGE else f"argMax({column}, measured_at)"


def _value(metric: Metric, value: Value) -> Value:
    """Return the value as readings carry it: a core state comes by its name, one from a tail by its position."""
    return value if isinstance(value, str) else value_of(metric, value)
