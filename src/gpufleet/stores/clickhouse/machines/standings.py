"""How things stand with many machines at once: which views were told of when, and whether they told a number."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import PCI_READER
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.stored.samples import Standing, StoredSample
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.counts import GPU, BusRows, GpuCounts, GpuRows
from gpufleet.stores.clickhouse.machines.declared import ON_BUS
from gpufleet.stores.clickhouse.samples.cache import fetch_views
from gpufleet.stores.clickhouse.schema.columns import Coded, Numeric

_ROWS_AT_ONCE = 65_536
"""Rows of which the texts are made at once: a million would take 200 MiB."""

_STANDINGS = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), toUnixTimestamp64Nano(received_at), provenance,
    tells
FROM latest FINAL WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
ORDER BY machine, view, reader, lane
"""


_CLUSTERS = "SELECT DISTINCT cluster FROM latest ORDER BY cluster"

_GPUS = f"""
SELECT machine, view, maxIf(toUnixTimestamp64Nano(known_at), reader != '{PCI_READER}') AS at,
    argMaxIf(toUnixTimestamp64Nano(received_at), known_at, tells) AS told_at,
    argMaxIf(toUnixTimestamp64Nano(received_at), known_at, reader != '{PCI_READER}') AS seen_at
FROM latest WHERE cluster = {{cluster:String}} AND startsWith(view, '{GPU}') GROUP BY machine, view ORDER BY at
"""  # noqa: S608 - the names are ours


_BUSES = f"""
SELECT cluster, machine, {ON_BUS} AS gpus, toUnixTimestamp64Nano(max(reported_at)) AS newest_at
FROM inventory GROUP BY cluster, machine
"""  # noqa: S608 - as above


_ON_BUSES_OF = f"""
SELECT machine, {ON_BUS} FROM inventory WHERE cluster = {{cluster:String}} AND machine IN {{machines:Array(String)}}
GROUP BY machine
"""  # noqa: S608 - as above


def fetch_gpus_on_buses(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, int]:
    """Ask how many GPUs are on the buses of machines; one that never told of its buses is left out."""
    parameters = {"cluster": cluster, "machines": list(machines)}
    return dict(handle.query(_ON_BUSES_OF, parameters=parameters).result_rows)


def fetch_counts(handle: Handle) -> GpuCounts:
    """Ask for what is to be known of every GPU to count them."""
    counts = GpuCounts()
    for (cluster,) in handle.query(_CLUSTERS).result_rows:  # all at once would take a kilobyte a GPU meanwhile
        for rows in _in_parts(handle, _GPUS, {"cluster": cluster}):
            of = Coded([cluster], np.zeros(rows.num_rows, np.int64))
            at, told_at, seen_at = (_numbers(rows, name) for name in ("at", "told_at", "seen_at"))
            counts.tell(GpuRows(of, _texts(rows, "machine"), _texts(rows, "view"), at, told_at, seen_at))
    for rows in _in_parts(handle, _BUSES, {}):
        gpus, reported_at = _numbers(rows, "gpus"), _numbers(rows, "newest_at")
        counts.tell_buses(BusRows(_texts(rows, "cluster"), _texts(rows, "machine"), gpus, reported_at))
    return counts


def _in_parts(handle: Handle, question: str, parameters: dict[str, str]) -> Iterator[Any]:
    """Yield the answer a part at a time; one thread takes less memory to make it, and less time of processors."""
    answer = handle.query_arrow(question, parameters=parameters, settings={"max_threads": 1})
    for first in range(0, answer.num_rows, _ROWS_AT_ONCE):
        yield answer.slice(first, _ROWS_AT_ONCE)


def _texts(rows: Any, name: str) -> Coded:
    return Coded(rows.column(name).to_pylist(), np.arange(rows.num_rows))


def _numbers(rows: Any, name: str) -> Numeric:
    return np.concatenate([np.asarray(part, np.int64) for part in rows.column(name).chunks])


def fetch_standings(handle: Handle, cluster: str, machines: Sequence[str]) -> dict[str, tuple[Standing, ...]]:
    """Ask how things stand with machines of a cluster; one that was never stored is left out."""
    parameters = {"cluster": cluster, "machines": list(machines)}
    views = fetch_views(handle, parameters)
    found: dict[str, list[Standing]] = {}
    for machine, key, reader, lane, measured_at, received_at, provenance, tells in handle.query(
        _STANDINGS, parameters=parameters
    ).result_rows:
        sample = Sample(
            view=views[machine, key, reader] if key else None,
            reader=reader,
            lane=Lane(lane),
            measured_at=measured_at,
            values={},
            provenance=Provenance(provenance),
        )
        one = Standing(stored=StoredSample(sample=sample, received_at=received_at), tells=tells)
        found.setdefault(machine, []).append(one)
    return {machine: tuple(standings) for machine, standings in found.items()}
