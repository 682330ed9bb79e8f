"""The newest samples of machines, put together again: values, absences, texts, dimensions, views."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import BY_ID, CATALOGUE, Lane, Metric, ValueType
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.cache import Met, Subject, fetch_newest, known_views
from gpufleet.stores.clickhouse.schema.sets import EMPTY, fetch_absences

Place = tuple[str, str, str, str, int]
"""(machine, view, reader, lane, measured_at): which sample."""

_SELECT = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), toUnixTimestamp64Nano(received_at), provenance,
    driver_session, absence_set, info_set, int_ids, int_values, float_ids, float_values, toUnixTimestamp64Nano(known_at)
"""

_INFO = """
SELECT DISTINCT info_set, metric, text
FROM info WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND info_set IN {ids:Array(UInt64)}
"""

_DIMS = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), metric, labels, int_value, float_value,
    absence_set
FROM dim_samples
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
    AND measured_at IN {instants:Array(DateTime64(9, 'UTC'))}
"""

_EVER = """
SELECT DISTINCT machine FROM dim_samples WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}
"""


def value_of(metric: Metric, stored: float) -> Value:
    """Return a value as readings carry it: a state by its name."""
    return metric.states[int(stored)] if metric.type is ValueType.ENUM else stored


def fetch_latest(
    handle: Handle, met: Met, cluster: str, machines: Sequence[str], view: str | None = None
) -> dict[str, tuple[StoredSample, ...]]:
    """Ask for the newest sample per view, reader and lane of each machine, in that order; of one view if given."""
    parameters: dict[str, Any] = {"cluster": cluster, "machines": list(machines)}
    subjects = [(cluster, machine) for machine in machines]
    with met.views.asking(subjects) as may_keep_views, met.told_dims.asking(subjects) as may_keep_told:
        # The rows first: what they point at was written before them
        rows = fetch_newest(handle, _SELECT, "latest", parameters, key=4, rank=itemgetter(14, 4), view=view)
        if not rows:
            return {}
        seen = {row[0] for row in rows if row[1]}
        views = known_views(handle, met.views, may_keep_views, cluster, seen)
        dims, dim_sets = _dims(handle, met, may_keep_told, cluster, rows, view)
    texts = _texts(handle, parameters, {row[9] for row in rows}, met)
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
    handle: Handle,
    met: Met,
    may_keep: set[Subject],
    cluster: str,
    rows: Sequence[tuple[Any, ...]],
    view: str | None,
) -> tuple[Dims, set[int]]:
    machines = {row[0] for row in rows}
    known = met.told_dims.known({(cluster, machine) for machine in machines})
    machines -= {machine for (_, machine), told in known.items() if not told}
    places = {row[:5] for row in rows if row[0] in machines}
    if not places:
        return {}, set()
    asked = {
        "cluster": cluster,
        "machines": sorted(machines),
        "instants": [_instant(at) for at in sorted({place[4] for place in places})],
        **({} if view is None else {"view": view}),
    }
    query = _DIMS if view is None else f"{_DIMS} AND view = {{view:String}}"
    dims: Dims = defaultdict(dict)
    sets = set()
    for *subject, metric, labels, int_value, float_value, absence_set in handle.query(
        query, parameters=asked
    ).result_rows:
        place = tuple(subject)
        if place in places:
            dims[place][metric, tuple(labels)] = (float_value if int_value is None else int_value, absence_set)
            sets.add(absence_set)
    unsure = machines - {place[0] for place in dims} - {machine for _, machine in known}
    if unsure:
        parameters = {"cluster": cluster, "machines": sorted(unsure)}
        told = {machine for (machine,) in handle.query(_EVER, parameters=parameters).result_rows}
        for machine in unsure:
            met.told_dims.keep(may_keep, (cluster, machine), machine in told)
    return dims, sets


def _instant(at: int) -> str:
    """Return an instant as a parameter: the engine takes a number of fewer digits for a date."""
    return f"{at // NANOS:010d}.{at % NANOS:09d}"


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
