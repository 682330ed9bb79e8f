"""Queries over many machines: newest samples without values, and GPU counts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpufleet.model.catalogue import Lane, Metric
from gpufleet.model.device_state import LOST
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.stored.samples import SampleSummary, StoredSample
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.counts import (
    DRIVER_GPUS,
    DRIVER_STATE,
    GPU_KEY_PREFIX,
    NO_DRIVER_GPUS,
    NO_DRIVER_ROW,
    NO_STATE,
    STATE,
    WITHOUT_GPUS,
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
from gpufleet.stores.clickhouse.samples.pages import (
    MachineRange,
    fetch_pages,
    numbers_of,
    texts_of,
)
from gpufleet.stores.clickhouse.schema.columns import DictionaryColumn, NumericArray

_ROWS_AT_ONCE = 65_536
"""Rows per chunk of decoded texts: a million rows would take 200 MiB."""

_STATE_ONLY = frozenset({STATE.name})


def _value_or(metric: Metric, none: int | str) -> str:
    """Return the expression of a whole number of a row, or `none`, a number or an expression."""
    return f"if(has(int_ids, {metric.id}), toInt64(int_values[indexOf(int_ids, {metric.id})]), {none})"


_HAS_DRIVER = f"has(int_ids, {DRIVER_STATE.id})"

_UNCOUNTED = f"if({_value_or(DRIVER_STATE, NO_STATE)} = {WITHOUT_GPUS}, 0, {NO_DRIVER_GPUS})"
"""Number of GPUs of a driver that reports no number."""

_REPORTS = f"""
SELECT machine, view, reader, lane, provenance, toUnixTimestamp64Nano(known_at) AS known_ns,
    toUnixTimestamp64Nano(received_at) AS received_ns, has_totals,
    {_value_or(STATE, NO_STATE)} AS state,
    if({_HAS_DRIVER}, {_value_or(DRIVER_GPUS, _UNCOUNTED)}, {NO_DRIVER_ROW}) AS driver_gpus
FROM latest WHERE {MachineRange.CONDITION} AND (startsWith(view, '{GPU_KEY_PREFIX}') OR {_HAS_DRIVER})
"""  # noqa: S608 - the names are ours
"""Reports of GPUs and drivers, also those that a merge will remove: the counts order them, which takes less time."""


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
    for cluster, rows in fetch_pages(handle, _REPORTS):
        counts.add(_reports(cluster, rows))
    load_buses(handle, counts)


def _reports(cluster: str, rows: Any) -> GpuReports:
    return GpuReports.of(
        cluster=DictionaryColumn([cluster], np.zeros(rows.num_rows, np.int32)),
        machine=texts_of(rows, "machine"),
        view=texts_of(rows, "view"),
        reader=texts_of(rows, "reader"),
        lane=texts_of(rows, "lane"),
        provenance=texts_of(rows, "provenance"),
        known_at=numbers_of(rows, "known_ns"),
        received_at=numbers_of(rows, "received_ns"),
        has_totals=numbers_of(rows, "has_totals"),
        state=numbers_of(rows, "state"),
        driver_gpus=numbers_of(rows, "driver_gpus"),
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
