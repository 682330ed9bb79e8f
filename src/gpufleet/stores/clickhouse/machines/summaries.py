"""Queries over many machines: newest samples without values, and GPU counts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpufleet.model.catalogue import Lane
from gpufleet.model.device_state import LOST
from gpufleet.model.machine import PCI_READER
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.stored.samples import SampleSummary, StoredSample
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.counts import (
    GPU_KEY_PREFIX,
    NO_STATE,
    STATE,
    BusReports,
    GpuCounts,
    GpuReports,
)
from gpufleet.stores.clickhouse.machines.declarations import PCI_GPU_COUNT
from gpufleet.stores.clickhouse.samples.cache import (
    ContentCache,
    NewestRowCache,
    ResultRow,
    Views,
    cached_views,
)
from gpufleet.stores.clickhouse.samples.latest import fetch_newest_rows
from gpufleet.stores.clickhouse.samples.newest import NewestSamples
from gpufleet.stores.clickhouse.samples.pages import fetch_clusters
from gpufleet.stores.clickhouse.schema.columns import DictionaryColumn, NumericArray

_ROWS_AT_ONCE = 65_536
"""Rows per chunk of decoded texts: a million rows would take 200 MiB."""

_STATE_ONLY = frozenset({STATE.name})

_HAS_STATE = f"has(int_ids, {STATE.id})"
_STATE = f"toInt64(int_values[indexOf(int_ids, {STATE.id})])"
_KNOWN_AT = "toUnixTimestamp64Nano(known_at)"

_GPUS = f"""
SELECT machine, view, maxIf({_KNOWN_AT}, reader != '{PCI_READER}') AS at,
    argMaxIf(toUnixTimestamp64Nano(received_at), known_at, has_totals) AS value_at,
    argMaxIf(toUnixTimestamp64Nano(received_at), known_at, reader != '{PCI_READER}') AS seen_at,
    countIf({_HAS_STATE}) AS stated, anyIf(reader, {_HAS_STATE}) AS stated_by,
    anyIf(provenance, {_HAS_STATE}) AS source, anyIf({_KNOWN_AT}, {_HAS_STATE}) AS stated_at,
    if(stated = 1, anyIf({_STATE}, {_HAS_STATE}), {NO_STATE}) AS state
FROM latest WHERE cluster = {{cluster:String}} AND startsWith(view, '{GPU_KEY_PREFIX}')
GROUP BY machine, view ORDER BY at
"""  # noqa: S608 - the names are ours
"""GPUs, with the state of those with a single row that has a state."""

_SEVERAL_STATES = f"""
SELECT machine, view, reader AS stated_by, argMax(provenance, known_at) AS source, argMax({_STATE}, known_at) AS state,
    max({_KNOWN_AT}) AS stated_at
FROM latest
WHERE cluster = {{cluster:String}} AND startsWith(view, '{GPU_KEY_PREFIX}') AND {_HAS_STATE}
    AND (machine, view) IN (
        SELECT machine, view FROM latest
        WHERE cluster = {{cluster:String}} AND startsWith(view, '{GPU_KEY_PREFIX}') AND {_HAS_STATE}
        GROUP BY machine, view HAVING count() > 1)
GROUP BY machine, view, reader ORDER BY stated_at
"""  # noqa: S608 - as above
"""States by reader of GPUs with several rows that have a state: of several readers, or not merged yet."""


_BUSES = f"""
SELECT cluster, machine, {PCI_GPU_COUNT} AS gpus, toUnixTimestamp64Nano(max(reported_at)) AS newest_at
FROM inventory GROUP BY cluster, machine
"""  # noqa: S608 - as above


_PCI_GPUS = f"""
SELECT machine, {PCI_GPU_COUNT} FROM inventory
WHERE cluster = {{cluster:String}} AND machine IN {{machines:Array(String)}}
GROUP BY machine
"""  # noqa: S608 - as above


def fetch_pci_gpu_counts(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, int]:
    """Return machine id to the number of GPUs on its PCI buses; see `ports.SampleStore`."""
    parameters = {"cluster": cluster, "machines": list(machines)}
    return dict(handle.query(_PCI_GPUS, parameters=parameters).result_rows)


NUMA_COLUMNS, NUMA_KEY_SIZE = ("machine", "addresses", "numa_nodes", "reported_at"), 1
"""Columns of the newest inventory of a machine as queried, and the size of its key."""

_NUMA_NODES = """
SELECT machine, tupleElement(newest, 1), tupleElement(newest, 2), newest_at FROM (
    SELECT machine, argMax(tuple(addresses, numa_nodes), reported_at) AS newest,
        toUnixTimestamp64Nano(max(reported_at)) AS newest_at
    FROM inventory WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
    GROUP BY machine)
"""


def fetch_numa_nodes(
    handle: Handle, cache: NewestRowCache | None, cluster: str, machines: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return machine id to PCI address to NUMA node; see `ports.SampleStore`.

    `cache` is None if other processes may write to the tables.
    """

    def query(wanted: Sequence[str]) -> Sequence[ResultRow]:
        found: Sequence[ResultRow] = handle.query(
            _NUMA_NODES, parameters={"cluster": cluster, "machines": list(wanted)}
        ).result_rows
        return found

    return {
        machine: {address: node for address, node in zip(addresses, nodes, strict=True) if node is not None}
        for machine, addresses, nodes, _ in (
            query(machines) if cache is None else cache.fetch(cluster, machines, query)
        )
    }


def load_gpu_counts(handle: Handle, counts: GpuCounts) -> None:
    """Add the GPUs of the whole store to counts, without memory of its newest samples."""
    for cluster in fetch_clusters(handle):  # a single query would take a kilobyte per GPU
        for rows in _chunks(handle, _GPUS, {"cluster": cluster}):
            at, value_at, seen_at = (_numbers(rows, name) for name in ("at", "value_at", "seen_at"))
            counts.add(_reports(cluster, rows, at, value_at, seen_at))
        for rows in _chunks(handle, _SEVERAL_STATES, {"cluster": cluster}):
            never = np.zeros(rows.num_rows, np.int64)
            counts.add(_reports(cluster, rows, never, never, never))
    load_buses(handle, counts)


def _reports(
    cluster: str, rows: Any, known_at: NumericArray, value_at: NumericArray, seen_at: NumericArray
) -> GpuReports:
    return GpuReports(
        cluster=DictionaryColumn([cluster], np.zeros(rows.num_rows, np.int64)),
        machine=_texts(rows, "machine"),
        view=_texts(rows, "view"),
        known_at=known_at,
        value_at=value_at,
        seen_at=seen_at,
        state=_numbers(rows, "state"),
        stated_at=_numbers(rows, "stated_at"),
        reader=_repeated_texts(rows, "stated_by"),
        provenance=_repeated_texts(rows, "source"),
    )


def load_buses(handle: Handle, counts: GpuCounts) -> None:
    """Add the PCI inventories of the whole store to counts."""
    for rows in _chunks(handle, _BUSES, {}):
        gpus, reported_at = _numbers(rows, "gpus"), _numbers(rows, "newest_at")
        counts.add_buses(BusReports(_texts(rows, "cluster"), _texts(rows, "machine"), gpus, reported_at))


def _chunks(handle: Handle, query: str, parameters: dict[str, str]) -> Iterator[Any]:
    """Yield the result in chunks. The query runs on one thread, which takes less memory and processor time."""
    table = handle.query_arrow(query, parameters=parameters, settings={"max_threads": 1})
    for first in range(0, table.num_rows, _ROWS_AT_ONCE):
        yield table.slice(first, _ROWS_AT_ONCE)


def _texts(rows: Any, name: str) -> DictionaryColumn:
    return DictionaryColumn(rows.column(name).to_pylist(), np.arange(rows.num_rows))


def _repeated_texts(rows: Any, name: str) -> DictionaryColumn:
    """Return a column of few distinct texts."""
    cells = rows.column(name).combine_chunks().dictionary_encode()
    return DictionaryColumn(cells.dictionary.to_pylist(), np.asarray(cells.indices, np.int64))


def _numbers(rows: Any, name: str) -> NumericArray:
    return np.concatenate([np.asarray(part, np.int64) for part in rows.column(name).chunks])


def fetch_summaries(
    handle: Handle,
    views_cache: ContentCache[Views],
    newest: NewestSamples | None,
    complete: Callable[[], None],
    cluster: str,
    machines: Sequence[str],
) -> dict[str, tuple[SampleSummary, ...]]:
    """Return machine id to newest samples without values; machines without samples are left out.

    `newest` and `complete` are those of `fetch_latest`.
    """
    found: dict[str, list[SampleSummary]] = {}
    with views_cache.reading([(cluster, machine) for machine in machines]) as may_keep:
        rows = fetch_newest_rows(handle, newest, complete, cluster, machines, metrics=_STATE_ONLY)
        views = cached_views(handle, views_cache, may_keep, cluster, {row.machine for row in rows if row.view})
    for row in rows:
        sample = Sample(
            view=views[row.machine, row.view, row.reader] if row.view else None,
            reader=row.reader,
            lane=Lane(row.lane),
            measured_at=row.measured_at,
            values={},
            provenance=Provenance(row.provenance),
        )
        state = row.values.get(STATE.name)
        summary = SampleSummary(
            stored=StoredSample(sample=sample, received_at=row.received_at),
            has_totals=row.has_totals,
            is_lost=None if state is None else state == LOST,
        )
        found.setdefault(row.machine, []).append(summary)
    return {machine: tuple(summaries) for machine, summaries in found.items()}
