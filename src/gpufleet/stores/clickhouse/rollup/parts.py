"""Expressions that the statements share, rendered from the catalogue. Everything in them is the catalogue's own."""

from collections.abc import Iterable

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage, ValueType
from gpufleet.model.retention import SPEAKS_SECONDS
from gpufleet.model.time import NANOS

TELLER = "cluster, machine, view, reader, lane, provenance"

RANGE = """cluster = {cluster:String} AND machine IN {machines:Array(String)}
    AND measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')"""

SPEAKS_NS = (
    "multiIf("
    + ", ".join(f"lane = '{lane.value}', {seconds * NANOS}" for lane, seconds in SPEAKS_SECONDS.items())
    + f", {min(SPEAKS_SECONDS.values()) * NANOS})"
)
"""Nanoseconds for which a reading of a row's lane speaks at most."""

NEXT = """leadInFrame(toUnixTimestamp64Nano(measured_at), 1, toInt64(9223372036854775807)) OVER (
        PARTITION BY cluster, machine, view, reader, lane ORDER BY measured_at
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"""
"""When the next sample of a row's lane was measured: there the row ends to speak, whatever that sample says."""


def plain(kind: MetricKind, storage: Storage, *types: ValueType) -> list[Metric]:
    """Return the catalogue's metrics of a kind that a column or a tail keeps, of some types or of any."""
    return [
        metric
        for metric in CATALOGUE.values()
        if metric.kind is kind and metric.storage is storage and (not types or metric.type in types)
    ]


def ids(metrics: Iterable[Metric]) -> str:
    """Return ids as the list of an `IN`; a number that no metric has where there is none."""
    return "(" + (", ".join(str(metric.id) for metric in metrics) or "0") + ")"


def column(metric: Metric) -> str:
    """Return what a row has of a metric, or NULL."""
    if metric.storage is Storage.CORE:
        return f"`{metric.name}`"
    tail = "tail_float" if metric.type is ValueType.FLOAT else "tail_int"
    return f"if(has({tail}_ids, {metric.id}), {tail}_values[indexOf({tail}_ids, {metric.id})], NULL)"


def state_pairs() -> str:
    """Return the (metric id, number of the state) pairs of a row."""
    core = [
        f"if(isNull({column(metric)}), [], [(toUInt16({metric.id}), assumeNotNull(toUInt8({column(metric)})))])"
        for metric in plain(MetricKind.STATE, Storage.CORE)
    ]
    tail = (
        f"arrayFilter(p -> p.1 IN {ids(plain(MetricKind.STATE, Storage.TAIL))}, "
        "arrayMap((i, v) -> (i, toUInt8(v)), tail_int_ids, tail_int_values))"
    )
    return f"arrayConcat({', '.join([*core, tail])})"
