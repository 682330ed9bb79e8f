"""The newest samples of machines, put together again: values, absences, texts, dimensions, views."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import BY_ID, CATALOGUE, Lane, Metric, ValueType
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.stored import StoredSample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.absences import fetch_absences
from gpufleet.stores.clickhouse.client import Handle

Place = tuple[str, str, str, str, int]
"""(machine, view, reader, lane, measured_at): which sample."""

_LATEST = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), toUnixTimestamp64Nano(received_at), provenance,
    driver_session, absence_set, info_set, int_ids, int_values, float_ids, float_values
FROM latest FINAL WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
"""

_VIEWS = """
SELECT machine, view, reader, kind, side, uuid, pci_address, instance, parent, index
FROM views FINAL WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
"""

_INFO = """
SELECT machine, view, reader, lane, info_set, metric, text
FROM info WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND info_set IN {ids:Array(UInt64)}
"""

_DIMS = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), metric, labels, int_value, float_value,
    absence_set
FROM dim_samples
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
    AND (machine, view, reader, lane, measured_at) IN (
        SELECT place.1, place.2, place.3, place.4, fromUnixTimestamp64Nano(place.5, 'UTC') FROM (
            SELECT arrayJoin(arrayZip({of:Array(String)}, {views:Array(String)}, {readers:Array(String)},
                {lanes:Array(String)}, {times:Array(Int64)})) AS place))
    AND measured_at >= fromUnixTimestamp64Nano({oldest:Int64}, 'UTC')
    AND measured_at <= fromUnixTimestamp64Nano({newest:Int64}, 'UTC')
"""


def value_of(metric: Metric, stored: float) -> Value:
    """Return a value as readings carry it: a state by its name."""
    return metric.states[int(stored)] if metric.type is ValueType.ENUM else stored


def fetch_latest(
    handle: Handle, cluster: str, machines: Sequence[str], view: str | None = None
) -> dict[str, tuple[StoredSample, ...]]:
    """Ask for the newest sample per view, reader and lane of each machine, in that order; of one view if given."""
    parameters: dict[str, Any] = {"cluster": cluster, "machines": list(machines)}
    suffix = ""
    if view is not None:
        parameters["view"] = view
        suffix = " AND view = {view:String}"
    rows = handle.query(_LATEST + suffix, parameters=parameters).result_rows
    if not rows:
        return {}
    views = fetch_views(handle, parameters, suffix)
    infos = _infos(handle, parameters, suffix, {row[9] for row in rows})
    dims, dim_sets = _dims(handle, parameters, rows)
    absences = fetch_absences(handle, {row[8] for row in rows} | dim_sets)
    stored: dict[str, list[StoredSample]] = {}
    for row in sorted(rows, key=lambda row: row[:4]):
        machine, key, reader, lane, measured_at, received_at, provenance, session, absence_set, info_set = row[:10]
        values: dict[str, Value | Absent] = {}
        values.update(_values(row))
        values.update(infos.get((machine, key, reader, lane, info_set), {}))
        values.update(absences.get(absence_set, {}))
        sample = Sample(
            view=views[machine, key, reader] if key else None,
            reader=reader,
            lane=Lane(lane),
            measured_at=measured_at,
            values=values,
            dims=tuple(_dim_values(dims.get((machine, key, reader, lane, measured_at), {}), absences)),
            provenance=Provenance(provenance),
            driver_session=session,
        )
        stored.setdefault(machine, []).append(StoredSample(sample=sample, received_at=received_at))
    return {machine: tuple(samples) for machine, samples in stored.items()}


def _values(row: tuple[Any, ...]) -> Iterable[tuple[str, Value]]:
    int_ids, int_values, float_ids, float_values = row[10:14]
    for ids, values in ((int_ids, int_values), (float_ids, float_values)):
        for number, value in zip(ids, values, strict=True):
            if number in BY_ID:  # a newer build may have written metrics that this one does not know
                metric = BY_ID[number]
                yield metric.name, value_of(metric, value)


def fetch_views(handle: Handle, parameters: dict[str, Any], suffix: str = "") -> dict[tuple[str, str, str], View]:
    """Ask how each reader describes the views of machines: by machine, key and reader."""
    return {
        (machine, key, reader): View(
            kind=ViewKind(kind),
            side=Side(side),
            uuid=uuid,
            pci_address=pci_address,
            instance=instance,
            parent=parent,
            index=index,
        )
        for machine, key, reader, kind, side, uuid, pci_address, instance, parent, index in handle.query(
            _VIEWS + suffix, parameters=parameters
        ).result_rows
    }


def _infos(
    handle: Handle,
    parameters: dict[str, Any],
    suffix: str,
    ids: set[int],
) -> dict[tuple[str, str, str, str, int], dict[str, Value]]:
    texts: dict[tuple[str, str, str, str, int], dict[str, Value]] = defaultdict(dict)
    if wanted := sorted(ids - {0}):
        for machine, key, reader, lane, number, metric, text in handle.query(
            _INFO + suffix, parameters={**parameters, "ids": wanted}
        ).result_rows:
            texts[machine, key, reader, lane, number][metric] = text
    return texts


Dims = dict[Place, dict[tuple[str, tuple[str, ...]], tuple[float | None, int]]]
"""Sample to (metric, labels) to (stored value, absence set)."""


def _dims(handle: Handle, parameters: dict[str, Any], rows: list[tuple[Any, ...]]) -> tuple[Dims, set[int]]:
    places = [row[:5] for row in rows]
    times = [place[4] for place in places]
    found = handle.query(
        _DIMS,
        parameters={
            "cluster": parameters["cluster"],
            "machines": parameters["machines"],
            "of": [place[0] for place in places],
            "views": [place[1] for place in places],
            "readers": [place[2] for place in places],
            "lanes": [place[3] for place in places],
            "times": times,
            "oldest": min(times),
            "newest": max(times),
        },
    ).result_rows
    dims: Dims = defaultdict(dict)
    sets = set()
    for machine, view, reader, lane, measured_at, metric, labels, int_value, float_value, absence_set in found:
        value = float_value if int_value is None else int_value
        dims[machine, view, reader, lane, measured_at][metric, tuple(labels)] = (value, absence_set)
        sets.add(absence_set)
    return dims, sets


def _dim_values(
    found: dict[tuple[str, tuple[str, ...]], tuple[float | None, int]],
    absences: dict[int, dict[str, Absent]],
) -> Iterable[DimValue]:
    for (name, labels), (stored, absence_set) in sorted(found.items()):
        metric = CATALOGUE.get(name)
        if metric is None:  # written by a newer build
            continue
        value = absences.get(absence_set, {}).get(name) if stored is None else value_of(metric, stored)
        if value is not None:
            yield DimValue(name, labels, value)
