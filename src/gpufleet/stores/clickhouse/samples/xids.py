"""XIDs in series of an allocation: those that can be of an earlier tenant are left out.

- An XID with a time is left out if that time is before the allocation.
- An XID without a time, as in imported pages, is left out until it differs from the first one that was read within the
  allocation. An absence because there was no XID yet counts as one without a number.
- The number of XIDs is left out if the count began before the allocation.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, Metric
from gpufleet.model.catalogue.events import XID_ALL, XID_LAST, XID_LAST_AT, XID_SINCE
from gpufleet.model.reading import Provenance
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.tables import value_expression
from gpufleet.stores.clickhouse.samples.cache import SubjectRow, subject_slices

NEWEST = frozenset({XID_LAST, XID_LAST_AT})
"""Metrics of the newest XID: a step has the last value, since the mean of two XIDs would be a third one."""

FILTERED = NEWEST | {XID_ALL}
"""Metrics that this module limits to an allocation."""

_TIME, _SINCE = CATALOGUE[XID_LAST_AT], CATALOGUE[XID_SINCE]
_BEGIN = "{xids_since:Float64}"
_UNKNOWN_AT = 2**63 - 1

_FIRST = f"""
SELECT subject, min(at), argMin(code, at) FROM (
    SELECT subject, toUnixTimestamp64Nano(measured_at) AS at, {value_expression(CATALOGUE[XID_LAST])} AS cell,
        toInt64(ifNull(cell, 0)) AS code
    FROM samples
    WHERE subject IN {{subjects:Array(UInt32)}} AND provenance = {{provenance:String}}
        AND measured_at >= fromUnixTimestamp64Nano({{first:Int64}}, 'UTC')
        AND measured_at < fromUnixTimestamp64Nano({{end:Int64}}, 'UTC')
        AND (isNotNull(cell) OR absence_set IN (
            SELECT id FROM absence_sets WHERE arrayExists(
                (metric, reason) -> metric = '{XID_LAST}' AND reason = '{Reason.NO_DATA}', metrics, reasons))))
GROUP BY subject
"""  # noqa: S608 - names are constants; values are bound as parameters


def xid_parameters(
    handle: Handle,
    metrics: Iterable[Metric],
    subjects: Mapping[int, SubjectRow],
    provenance: Provenance,
    since: int,
    end: int,
) -> dict[str, Any]:
    """Return the parameters of the expressions of this module.

    Args:
        handle: connection of the query for the first XIDs of imported series.
        metrics: of the query.
        subjects: of the query, by number.
        provenance: of the samples.
        since: start of the allocation, nanoseconds since 1970; 0 for all XIDs.
        end: of the query.
    """
    rows: list[tuple[int, int, int]] = []
    if since and provenance is Provenance.IMPORTED and any(one.name == XID_LAST for one in metrics):
        bound = {"provenance": provenance.value, "first": since, "end": end}
        for slice_ in subject_slices(subjects):
            rows += handle.query(_FIRST, parameters={**bound, "subjects": slice_}).result_rows
    rows = rows or [(0, _UNKNOWN_AT, -1)]
    numbers, times, codes = zip(*rows, strict=True)
    return {
        "xids_since": since / NANOS,
        "first_of": list(numbers),
        "first_at": list(times),
        "first_codes": list(codes),
    }


def sample_cell(metric: Metric) -> str:
    """Return the SQL expression for the value of a metric of `FILTERED` in a sample."""
    cell = value_expression(metric)
    if metric.name == XID_ALL:
        return f"if(ifNull({value_expression(_SINCE)}, 0) >= {_BEGIN}, {cell}, NULL)"
    time = value_expression(_TIME)
    timed = f"if({_too_early(time)}, NULL, {cell})"
    if metric is _TIME:
        return timed
    changed = _changed("toUnixTimestamp64Nano(measured_at)", f"ifNull({cell}, 0)")
    return f"if(isNull({time}) AND NOT {changed}, NULL, {timed})"


def window_aggregates(metric: Metric, instant: str) -> tuple[str, str]:
    """Return the SQL expressions for value and time of a metric of `FILTERED` in windows.

    A window in which the XID changed does not show the new one.
    """
    prefix = f"tail_{metric.kind.value}"
    place = f"indexOf({prefix}_ids, {metric.id})"  # 0 if it is missing
    if metric.name == XID_ALL:
        since = f"indexOf(tail_gauge_ids, {_SINCE.id})"
        is_present = f"{place} > 0 AND if({since} = 0, 0, tail_gauge_min[{since}]) >= {_BEGIN}"
        return f"argMaxIf({prefix}_last[{place}], at, {is_present})", f"maxIf({instant}, {is_present})"
    time = f"indexOf({prefix}_ids, {_TIME.id})"
    newest = f"{prefix}_max[{place}]"
    timed = f"NOT {_too_early(f'{prefix}_max[{time}]')}"
    is_present = f"{place} > 0 AND if({time} = 0, {_changed(instant, newest)}, {timed})"
    cell = newest if metric is _TIME else f"if({prefix}_min[{place}] = {newest}, {newest}, NULL)"
    return f"tupleElement(argMaxIf(tuple({cell}), at, {is_present}), 1)", f"maxIf({instant}, {is_present})"


def _too_early(time: str) -> str:
    """Return the condition of an XID of before the allocation."""
    return f"ifNull({time} < {_BEGIN}, 0)"


def _changed(instant: str, code: str) -> str:
    """Return the condition of an XID without time that differs from the first one."""
    first_at = f"transform(subject, {{first_of:Array(UInt32)}}, {{first_at:Array(Int64)}}, toInt64({_UNKNOWN_AT}))"
    first = "transform(subject, {first_of:Array(UInt32)}, {first_codes:Array(Int64)}, toInt64(-1))"
    return f"({_BEGIN} = 0 OR ({instant} > {first_at} AND toInt64({code}) != {first}))"
