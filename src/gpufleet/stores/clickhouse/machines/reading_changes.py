"""Changes of a machine's own texts and counts: texts from the history of `info`, counts from `samples`."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpufleet.model.catalogue import BY_ID
from gpufleet.model.reading import Value
from gpufleet.model.stored.readings import ReadingChangeQuery, StoredReadingChange
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.keys import MACHINE_VIEW
from gpufleet.stores.clickhouse.samples.newest_rows import value_of
from gpufleet.stores.clickhouse.schema.sets import EMPTY_SET

_WINDOW = "OVER (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"

_RANGE = "at >= {start:Int64} AND at < {end:Int64} AND at <= {until:Int64} ORDER BY at DESC LIMIT {limit:UInt32}"

_OF_MACHINE = f"cluster = {{cluster:String}} AND machine = {{machine:String}} AND view = '{MACHINE_VIEW}'"

_TEXT_SETS = f"""
SELECT at, id, before FROM (
    SELECT at, id, lagInFrame(id) {_WINDOW} AS before FROM (
        SELECT toUnixTimestamp64Nano(since) AS at, max(info_set) AS id FROM info
        WHERE {_OF_MACHINE} AND reader = {{reader:String}}
        GROUP BY since))
WHERE id != before AND before != {EMPTY_SET} AND {_RANGE}
"""  # noqa: S608 - names are constants; values are bound as parameters

_TEXTS = f"""
SELECT DISTINCT info_set, metric, text FROM info
WHERE {_OF_MACHINE} AND reader = {{reader:String}} AND info_set IN {{ids:Array(UInt64)}}
"""  # noqa: S608 - as above

_COUNT_SETS = f"""
SELECT at, ids, counts, earlier_ids, earlier_counts FROM (
    SELECT at, ids, counts, lagInFrame(ids) {_WINDOW} AS earlier_ids, lagInFrame(counts) {_WINDOW} AS earlier_counts,
        row_number() {_WINDOW} AS number
    FROM (
        SELECT toUnixTimestamp64Nano(measured_at) AS at, argMax(tail_int_ids, received_at) AS ids,
            argMax(tail_int_values, received_at) AS counts
        FROM samples WHERE subject IN (
            SELECT number FROM subjects WHERE {_OF_MACHINE} AND reader = {{reader:String}})
        GROUP BY measured_at))
WHERE number > 1 AND (ids, counts) != (earlier_ids, earlier_counts) AND {_RANGE}
"""  # noqa: S608 - as above


def fetch_reading_changes(handle: Handle, query: ReadingChangeQuery) -> tuple[StoredReadingChange, ...]:
    """Return changed texts and counts, newest first; see `ports.HistoryStore.reading_changes`."""
    until, _ = query.before or (query.end, "")
    parameters: dict[str, Any] = {
        "cluster": query.cluster,
        "machine": query.machine,
        "reader": query.reader,
        "start": query.start,
        "end": query.end,
        "until": until,
        "limit": query.limit + 1,  # the first set can be one whose last changes are requested
    }
    changes = [*_text_changes(handle, parameters), *_count_changes(handle, parameters)]
    # Each set has a change at least. So the newest changes are among those of the newest sets of both kinds.
    ordered = sorted(changes, key=lambda one: (one.at, one.metric), reverse=True)
    wanted = [one for one in ordered if query.before is None or (one.at, one.metric) < query.before]
    return tuple(wanted[: query.limit])


def _text_changes(handle: Handle, parameters: Mapping[str, Any]) -> Iterator[StoredReadingChange]:
    sets = handle.query(_TEXT_SETS, parameters=dict(parameters)).result_rows
    if not sets:
        return
    ids = sorted({number for _, *pair in sets for number in pair})
    texts: dict[int, dict[str, Value]] = {number: {} for number in ids}
    for number, metric, text in handle.query(_TEXTS, parameters={**parameters, "ids": ids}).result_rows:
        texts[number][metric] = text
    for at, number, earlier in sets:
        yield from _differences(at, texts[earlier], texts[number])


def _count_changes(handle: Handle, parameters: Mapping[str, Any]) -> Iterator[StoredReadingChange]:
    for at, ids, counts, *earlier in handle.query(_COUNT_SETS, parameters=dict(parameters)).result_rows:
        yield from _differences(at, _named(*earlier), _named(ids, counts))


def _named(ids: list[int], counts: list[int]) -> dict[str, Value]:
    known = ((BY_ID.get(number), count) for number, count in zip(ids, counts, strict=True))
    return {metric.name: value_of(metric, count) for metric, count in known if metric is not None}


def _differences(at: int, earlier: Mapping[str, Value], now: Mapping[str, Value]) -> Iterator[StoredReadingChange]:
    for metric in sorted(earlier.keys() | now.keys()):
        if earlier.get(metric) != now.get(metric):
            yield StoredReadingChange(at=at, metric=metric, before=earlier.get(metric), value=now.get(metric))
