"""The newest samples of machines, put together again: values, absences, texts, dimensions, views."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import BY_ID, CATALOGUE, Lane, Metric, ValueType
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.stored import StoredSample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.absences import AbsenceSets, fetch_absences
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.sets import EMPTY, ById

Place = tuple[str, str, str, str, int]
"""(machine, view, reader, lane, measured_at): which sample."""

_LATEST = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), toUnixTimestamp64Nano(received_at), provenance,
    driver_session, absence_set, info_set, int_ids, int_values, float_ids, float_values,
    (toUnixTimestamp64Nano(known_at), toUnixTimestamp64Nano(measured_at))
FROM latest{final} WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
"""

_VIEWS = """
SELECT machine, view, reader, kind, side, uuid, pci_address, instance, parent, index,
    toUnixTimestamp64Nano(reported_at)
FROM views{final} WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
"""

_FEW = 16
"""Machines up to which the newest of the rows that are not merged yet is found here: FINAL takes longer for them."""

_INFO = """
SELECT DISTINCT info_set, metric, text
FROM info WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND info_set IN {ids:Array(UInt64)}
"""

_DIMS = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), metric, labels, int_value, float_value,
    absence_set
FROM dim_samples
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
    AND measured_at >= fromUnixTimestamp64Nano({oldest:Int64}, 'UTC')
    AND measured_at <= fromUnixTimestamp64Nano({newest:Int64}, 'UTC')
    AND measured_at IN (SELECT fromUnixTimestamp64Nano(arrayJoin({instants:Array(Int64)}), 'UTC'))
"""


class Met(msgspec.Struct, frozen=True):
    """Sets that were met in answers before."""

    absences: AbsenceSets = msgspec.field(default_factory=ById)
    texts: ById[dict[str, Value]] = msgspec.field(default_factory=ById)


def value_of(metric: Metric, stored: float) -> Value:
    """Return a value as readings carry it: a state by its name."""
    return metric.states[int(stored)] if metric.type is ValueType.ENUM else stored


def fetch_latest(
    handle: Handle, met: Met, cluster: str, machines: Sequence[str], view: str | None = None
) -> dict[str, tuple[StoredSample, ...]]:
    """Ask for the newest sample per view, reader and lane of each machine, in that order; of one view if given."""
    parameters: dict[str, Any] = {"cluster": cluster, "machines": list(machines)}
    suffix = ""
    if view is not None:
        parameters["view"] = view
        suffix = " AND view = {view:String}"
    rows = _newest(handle.query(_merged(_LATEST, parameters) + suffix, parameters=parameters).result_rows, key=4)
    if not rows:
        return {}
    views = fetch_views(handle, parameters, suffix)
    texts = _texts(handle, parameters, {row[9] for row in rows}, met)
    dims, dim_sets = _dims(handle, parameters, suffix, rows)
    absences = fetch_absences(handle, {row[8] for row in rows} | dim_sets, met.absences)
    stored: dict[str, list[StoredSample]] = {}
    for row in rows:
        machine, key, reader, lane, measured_at, received_at, provenance, session, absence_set, info_set = row[:10]
        values: dict[str, Value | Absent] = {}
        values.update(_values(row))
        values.update(texts.get(info_set, {}))
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


def _merged(query: str, parameters: dict[str, Any]) -> str:
    return query.replace("{final}", "" if len(parameters["machines"]) <= _FEW else " FINAL")


def _newest(rows: Sequence[tuple[Any, ...]], key: int) -> list[tuple[Any, ...]]:
    """Return of rows with the same first cells the one with the greatest last cell, in the order of those cells."""
    newest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        before = newest.get(row[:key])
        if before is None or row[-1] > before[-1]:
            newest[row[:key]] = row
    return [row for _, row in sorted(newest.items())]


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
        for machine, key, reader, kind, side, uuid, pci_address, instance, parent, index, _ in _newest(
            handle.query(_merged(_VIEWS, parameters) + suffix, parameters=parameters).result_rows, key=3
        )
    }


def _texts(handle: Handle, parameters: dict[str, Any], ids: set[int], met: Met) -> dict[int, dict[str, Value]]:
    found, wanted = met.texts.split(ids - {EMPTY})
    if wanted:
        asked: dict[int, dict[str, Value]] = defaultdict(dict)
        for number, metric, text in handle.query(_INFO, parameters={**parameters, "ids": wanted}).result_rows:
            asked[number][metric] = text
        met.texts.keep(asked)
        found.update(asked)
    return found


Dims = dict[Place, dict[tuple[str, tuple[str, ...]], tuple[float | None, int]]]
"""Sample to (metric, labels) to (stored value, absence set)."""


def _dims(
    handle: Handle, parameters: dict[str, Any], suffix: str, rows: list[tuple[Any, ...]]
) -> tuple[Dims, set[int]]:
    places = {row[:5] for row in rows}
    instants = sorted({row[4] for row in rows})
    asked = {**parameters, "instants": instants, "oldest": instants[0], "newest": instants[-1]}
    found = handle.query(_DIMS + suffix, parameters=asked).result_rows
    dims: Dims = defaultdict(dict)
    sets = set()
    for *subject, metric, labels, int_value, float_value, absence_set in found:
        place = tuple(subject)
        if place in places:
            dims[place][metric, tuple(labels)] = (float_value if int_value is None else int_value, absence_set)
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
