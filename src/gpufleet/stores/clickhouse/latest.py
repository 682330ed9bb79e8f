"""The newest samples of a machine, put together again: values, absences, texts, dimensions, views."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import BY_ID, CATALOGUE, CORE_METRICS, Lane, Metric, ValueType
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.stored import StoredSample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.client import Handle

Place = tuple[str, str, str, int]
"""(view, reader, lane, measured_at): which sample of the machine."""

_CORE = ", ".join(f"`{metric.name}`" for metric in CORE_METRICS)

_LATEST = f"""
SELECT view, reader, lane, toUnixTimestamp64Nano(measured_at), toUnixTimestamp64Nano(received_at), provenance,
    driver_session, absence_set, info_set, tail_int_ids, tail_int_values, tail_float_ids, tail_float_values, {_CORE}
FROM latest FINAL WHERE cluster = {{cluster:String}} AND machine = {{machine:String}}
"""  # noqa: S608 - the names are the catalogue's own; what is asked for is bound

_VIEWS = """
SELECT view, reader, kind, side, uuid, pci_address, instance, parent, index
FROM views FINAL WHERE cluster = {cluster:String} AND machine = {machine:String}
"""

_INFO = """
SELECT view, reader, lane, info_set, metric, text
FROM info WHERE cluster = {cluster:String} AND machine = {machine:String} AND info_set IN {ids:Array(UInt64)}
"""

_ABSENCES = "SELECT id, metrics, reasons, details FROM absence_sets WHERE id IN {ids:Array(UInt64)}"

_DIMS = """
SELECT view, reader, lane, toUnixTimestamp64Nano(measured_at), metric, labels, int_value, float_value, absence_set
FROM dim_samples
WHERE cluster = {cluster:String} AND machine = {machine:String}
    AND (view, reader, lane, measured_at) IN (
        SELECT place.1, place.2, place.3, fromUnixTimestamp64Nano(place.4, 'UTC') FROM (
            SELECT arrayJoin(arrayZip({views:Array(String)}, {readers:Array(String)}, {lanes:Array(String)},
                {times:Array(Int64)})) AS place))
    AND measured_at >= fromUnixTimestamp64Nano({oldest:Int64}, 'UTC')
    AND measured_at <= fromUnixTimestamp64Nano({newest:Int64}, 'UTC')
"""


def value_of(metric: Metric, stored: float) -> Value:
    """Return a value as readings carry it: a state by its name."""
    return metric.states[int(stored)] if metric.type is ValueType.ENUM else stored


def fetch_latest(handle: Handle, cluster: str, machine: str, view: str | None) -> tuple[StoredSample, ...]:
    """Ask for the newest sample per view, reader and lane of a machine, in that order."""
    parameters: dict[str, Any] = {"cluster": cluster, "machine": machine}
    suffix = ""
    if view is not None:
        parameters["view"] = view
        suffix = " AND view = {view:String}"
    rows = handle.query(_LATEST + suffix, parameters=parameters).result_rows
    if not rows:
        return ()
    views = _views(handle.query(_VIEWS + suffix, parameters=parameters).result_rows)
    infos = _infos(handle, parameters, suffix, {row[8] for row in rows})
    dims, dim_sets = _dims(handle, parameters, rows)
    absences = _absences(handle, {row[7] for row in rows} | dim_sets)
    stored = []
    for row in sorted(rows, key=lambda row: row[:3]):
        key, reader, lane, measured_at, received_at, provenance, session, absence_set, info_set = row[:9]
        values: dict[str, Value | Absent] = {}
        values.update(_values(row))
        values.update(infos.get((key, reader, lane, info_set), {}))
        values.update(absences.get(absence_set, {}))
        sample = Sample(
            view=views[key, reader] if key else None,
            reader=reader,
            lane=Lane(lane),
            measured_at=measured_at,
            values=values,
            dims=tuple(_dim_values(dims.get((key, reader, lane, measured_at), {}), absences)),
            provenance=Provenance(provenance),
            driver_session=session,
        )
        stored.append(StoredSample(sample=sample, received_at=received_at))
    return tuple(stored)


def _values(row: tuple[Any, ...]) -> Iterable[tuple[str, Value]]:
    int_ids, int_values, float_ids, float_values = row[9:13]
    for metric, value in zip(CORE_METRICS, row[13:], strict=True):
        if value is not None:
            yield metric.name, value
    for ids, values in ((int_ids, int_values), (float_ids, float_values)):
        for number, value in zip(ids, values, strict=True):
            if number in BY_ID:  # a newer build may have written metrics that this one does not know
                metric = BY_ID[number]
                yield metric.name, value_of(metric, value)


def _views(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[str, str], View]:
    return {
        (key, reader): View(
            kind=ViewKind(kind),
            side=Side(side),
            uuid=uuid,
            pci_address=pci_address,
            instance=instance,
            parent=parent,
            index=index,
        )
        for key, reader, kind, side, uuid, pci_address, instance, parent, index in rows
    }


def _infos(
    handle: Handle,
    parameters: dict[str, Any],
    suffix: str,
    ids: set[int],
) -> dict[tuple[str, str, str, int], dict[str, Value]]:
    texts: dict[tuple[str, str, str, int], dict[str, Value]] = defaultdict(dict)
    if wanted := sorted(ids - {0}):
        for key, reader, lane, number, metric, text in handle.query(
            _INFO + suffix, parameters={**parameters, "ids": wanted}
        ).result_rows:
            texts[key, reader, lane, number][metric] = text
    return texts


def _absences(handle: Handle, ids: set[int]) -> dict[int, dict[str, Absent]]:
    wanted = sorted(ids - {0})
    if not wanted:
        return {}
    return {
        number: {
            metric: Absent(Reason(reason), detail)
            for metric, reason, detail in zip(metrics, reasons, details, strict=True)
        }
        for number, metrics, reasons, details in handle.query(_ABSENCES, parameters={"ids": wanted}).result_rows
    }


Dims = dict[Place, dict[tuple[str, tuple[str, ...]], tuple[float | None, int]]]
"""Sample to (metric, labels) to (stored value, absence set)."""


def _dims(handle: Handle, parameters: dict[str, Any], rows: list[tuple[Any, ...]]) -> tuple[Dims, set[int]]:
    places = [row[:4] for row in rows]
    times = [place[3] for place in places]
    found = handle.query(
        _DIMS,
        parameters={
            "cluster": parameters["cluster"],
            "machine": parameters["machine"],
            "views": [place[0] for place in places],
            "readers": [place[1] for place in places],
            "lanes": [place[2] for place in places],
            "times": times,
            "oldest": min(times),
            "newest": max(times),
        },
    ).result_rows
    dims: Dims = defaultdict(dict)
    sets = set()
    for view, reader, lane, measured_at, metric, labels, int_value, float_value, absence_set in found:
        value = float_value if int_value is None else int_value
        dims[view, reader, lane, measured_at][metric, tuple(labels)] = (value, absence_set)
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
