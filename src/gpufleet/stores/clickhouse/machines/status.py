"""Queries for reader status, and the machines that report a view or a text."""

import math
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

from gpufleet.model.catalogue import Lane
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.view import Side, ViewKind
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.cache import NewestRowCache, ResultRow, fetch_newest

_READER_STATUS = """
SELECT machine, reader, lane, state, interval_seconds, toUnixTimestamp64Nano(last_attempt),
    toUnixTimestamp64Nano(last_success), duration_seconds, failures, error_class, last_error,
    toUnixTimestamp64Nano(reported_at)
"""


READER_STATUS_COLUMNS = (
    *("machine", "reader", "lane", "state", "interval_seconds", "last_attempt", "last_success"),
    *("duration_seconds", "failures", "error_class", "last_error", "reported_at"),
)
"""Columns as queried."""

READER_STATUS_KEY = 3


def fetch_readers(
    handle: Handle, cache: NewestRowCache | None, cluster: str, machines: Sequence[str]
) -> dict[str, tuple[ReaderStatus, ...]]:
    """Return machine id to the newest status of each reader and lane; `cache` is None if other processes may write."""

    def query(wanted: Sequence[str]) -> list[ResultRow]:
        parameters = {"cluster": cluster, "machines": list(wanted)}
        key, rank = READER_STATUS_KEY, itemgetter(-1)
        return fetch_newest(handle, _READER_STATUS, "reader_status", parameters, key=key, rank=rank)

    found: dict[str, list[ReaderStatus]] = {}
    for (
        machine,
        reader,
        lane,
        state,
        interval,
        last_attempt,
        last_success,
        duration,
        failures,
        error_class,
        last_error,
        _,
    ) in query(machines) if cache is None else cache.fetch(cluster, machines, query):
        status = ReaderStatus(
            reader=reader,
            lane=Lane(lane),
            state=ReaderState(state),
            interval_seconds=None if math.isnan(interval) else interval,
            last_attempt=last_attempt,
            last_success=last_success,
            duration_seconds=None if math.isnan(duration) else duration,
            failures=failures,
            error_class=error_class,
            last_error=last_error,
        )
        found.setdefault(machine, []).append(status)
    return {machine: tuple(statuses) for machine, statuses in found.items()}


_MACHINES_OF_VIEW = """
SELECT DISTINCT machine FROM views WHERE cluster = {cluster:String} AND view = {view:String} ORDER BY machine
"""

_SHARED_GPUS = f"""
SELECT view, arraySort(groupUniqArray(machine)) AS machines FROM views
WHERE cluster = {{cluster:String}} AND kind = '{ViewKind.GPU}' AND side = '{Side.HOST}' AND isNotNull(uuid)
GROUP BY view HAVING length(machines) > 1 ORDER BY view
"""  # noqa: S608 - names are constants; values are bound as parameters

_VIEWS_WITH_PREFIX = """
SELECT DISTINCT view, machine FROM views
WHERE cluster = {cluster:String} AND arrayExists(prefix -> startsWith(view, prefix), {prefixes:Array(String)})
ORDER BY view, machine LIMIT {limit:UInt32}
"""

_EVER_REPORTED = """
SELECT DISTINCT machine, view, reader, lane, info_set FROM info
WHERE text = {text:String} AND cluster = {cluster:String} AND metric = {metric:String}
"""

_TEXTS_OF_VIEWS = """
SELECT DISTINCT machine, view, reader, toUnixTimestamp64Nano(since) AS at, text FROM info
WHERE cluster = {cluster:String} AND metric = {metric:String} AND (machine, view) IN (
    SELECT machine, view FROM info
    WHERE cluster = {cluster:String} AND metric = {metric:String} AND text = {text:String})
ORDER BY at, machine, view, reader, text
"""

MACHINES_PER_QUERY = 2_000
"""Maximum number of machine ids in a query: a server accepts 128 KiB per parameter."""

_TEXTS_OF_MACHINES = """
SELECT DISTINCT machine, view, reader, toUnixTimestamp64Nano(since) AS at, text FROM info
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND metric = {metric:String}
ORDER BY at, machine, view, reader, text
"""

_CURRENT_SETS = """
SELECT machine, view, reader, lane, info_set FROM latest FINAL
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND view IN {views:Array(String)}
"""


def fetch_reporters_of_view(handle: Handle, cluster: str, view: str) -> tuple[str, ...]:
    """Return the machines that ever reported a view."""
    rows = handle.query(_MACHINES_OF_VIEW, parameters={"cluster": cluster, "view": view}).result_rows
    return tuple(row[0] for row in rows)


def fetch_shared_gpus(handle: Handle, cluster: str) -> dict[str, tuple[str, ...]]:
    """Return the GPUs that several machines reported on their own side; see `ports.SampleStore.shared_gpus`."""
    rows = handle.query(_SHARED_GPUS, parameters={"cluster": cluster}).result_rows
    return {view: tuple(machines) for view, machines in rows}


def fetch_views_with_prefix(
    handle: Handle, cluster: str, prefixes: Sequence[str], limit: int
) -> tuple[tuple[str, str], ...]:
    """Return the views whose key starts with one of these, and the machines that ever reported them."""
    parameters = {"cluster": cluster, "prefixes": list(prefixes), "limit": limit}
    rows = handle.query(_VIEWS_WITH_PREFIX, parameters=parameters).result_rows
    return tuple((view, machine) for view, machine in rows)


def fetch_texts_of_views(handle: Handle, cluster: str, metric: str, text: str) -> tuple[StoredText, ...]:
    """Return the texts of the views that ever had a text; see `ports.HistoryStore.texts_of_views`."""
    return _texts(handle, _TEXTS_OF_VIEWS, {"cluster": cluster, "metric": metric, "text": text})


def fetch_texts_of_machines(
    handle: Handle, cluster: str, machines: Sequence[str], metric: str
) -> tuple[StoredText, ...]:
    """Return the texts of machines and their devices; see `ports.HistoryStore.texts_of_machines`."""
    found: list[StoredText] = []
    for first in range(0, len(machines), MACHINES_PER_QUERY):
        some = list(machines[first : first + MACHINES_PER_QUERY])
        parameters = {"cluster": cluster, "machines": some, "metric": metric}
        found += _texts(handle, _TEXTS_OF_MACHINES, parameters)
    return tuple(sorted(found, key=attrgetter("at", "machine", "view", "reader", "text")))


def _texts(handle: Handle, query: str, parameters: dict[str, Any]) -> tuple[StoredText, ...]:
    rows = handle.query(query, parameters=parameters).result_rows
    return tuple(
        StoredText(machine=machine, view=view, reader=reader, at=at, text=text)
        for machine, view, reader, at, text in rows
    )


def fetch_reporters_of_text(handle: Handle, cluster: str, metric: str, text: str) -> tuple[str, ...]:
    """Return the machines with this text of an info metric in a newest sample.

    The first query scans the texts for every machine that ever reported it. The second looks up the newest samples of
    only those machines. A single query for both made the server read every newest sample of the cluster.
    """
    reported = handle.query(_EVER_REPORTED, parameters={"cluster": cluster, "metric": metric, "text": text}).result_rows
    if not reported:
        return ()
    parameters: dict[str, Any] = {
        "cluster": cluster,
        "machines": sorted({row[0] for row in reported}),
        "views": sorted({row[1] for row in reported}),
    }
    current = handle.query(_CURRENT_SETS, parameters=parameters).result_rows
    return tuple(sorted({row[0] for row in set(map(tuple, reported)) & set(map(tuple, current))}))
