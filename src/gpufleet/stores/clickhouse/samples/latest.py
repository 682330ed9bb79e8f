"""Newest samples of machines, assembled from values, absences, texts, dimensions and views."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import BY_ID, CATALOGUE, Lane
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.cache import (
    ReadCache,
    ResultRow,
    Subject,
    SubjectsOf,
    cached_views,
    fetch_newest,
    subject_slices,
)
from gpufleet.stores.clickhouse.samples.newest import NewestSamples
from gpufleet.stores.clickhouse.samples.newest_rows import ROW_COLUMNS, NewestRow, value_of
from gpufleet.stores.clickhouse.schema.sets import EMPTY_SET, fetch_absences

SampleKey = tuple[str, str, str, str, int]
"""(machine, view, reader, lane, measured_at)."""

_QUERIED = ("machine", *ROW_COLUMNS)
"""Columns of `latest` as queried. After them: ids and values of integers, ids and values of floats, and `known_at`."""

_SELECT_LATEST = """
SELECT machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), toUnixTimestamp64Nano(received_at), provenance,
    driver_session, absence_set, info_set, has_totals, int_ids, int_values, float_ids, float_values,
    toUnixTimestamp64Nano(known_at)
"""

_INFO = """
SELECT DISTINCT info_set, metric, text
FROM info WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND info_set IN {ids:Array(UInt64)}
"""

_DIMS = """
SELECT subject, toUnixTimestamp64Nano(measured_at), metric, labels, int_value, float_value, absence_set
FROM dim_samples
WHERE subject IN {subjects:Array(UInt32)} AND measured_at IN {instants:Array(DateTime64(9, 'UTC'))}
"""

_SUBJECTS_WITH_DIMS = "SELECT DISTINCT subject FROM dim_samples WHERE subject IN {subjects:Array(UInt32)}"


def fetch_latest(
    handle: Handle,
    cache: ReadCache,
    newest: NewestSamples | None,
    complete: Callable[[], None],
    subjects_of: SubjectsOf,
    cluster: str,
    machines: Sequence[str],
    view: str | None = None,
) -> dict[str, tuple[StoredSample, ...]]:
    """Return machine id to the newest sample per view, reader and lane, in that order (of one view).

    `newest` has the samples in memory; None if other processes may write to the tables. `complete` writes the rows
    that the table `latest` lacks. `subjects_of` returns the subjects of machines.
    """
    parameters: dict[str, Any] = {"cluster": cluster, "machines": list(machines)}
    subjects = [(cluster, machine) for machine in machines]
    with cache.views.reading(subjects) as may_keep_views, cache.has_dims.reading(subjects) as may_keep_dims:
        # Rows first: everything that they refer to was written before them
        rows = fetch_newest_rows(handle, newest, complete, cluster, machines, view)
        if not rows:
            return {}
        seen = {row.machine for row in rows if row.view}
        views = cached_views(handle, cache.views, may_keep_views, cluster, seen)
        dims, dim_sets = _dims(handle, cache, may_keep_dims, subjects_of, cluster, rows)
    texts = _texts(handle, parameters, {row.info_set for row in rows}, cache)
    absences = fetch_absences(handle, {row.absence_set for row in rows} | dim_sets, cache.absences)
    stored: dict[str, list[StoredSample]] = {}
    for row in rows:
        sample = Sample(
            view=views[row.machine, row.view, row.reader] if row.view else None,
            reader=row.reader,
            lane=Lane(row.lane),
            measured_at=row.measured_at,
            values={**row.values, **texts.get(row.info_set, {}), **absences.get(row.absence_set, {})},
            dims=tuple(_dim_values(dims.get(row.place, {}), absences)),
            provenance=Provenance(row.provenance),
            driver_session=row.driver_session,
        )
        stored.setdefault(row.machine, []).append(StoredSample(sample=sample, received_at=row.received_at))
    return {machine: tuple(samples) for machine, samples in stored.items()}


def fetch_newest_rows(
    handle: Handle,
    newest: NewestSamples | None,
    complete: Callable[[], None],
    cluster: str,
    machines: Sequence[str],
    view: str | None = None,
    metrics: Collection[str] | None = None,
) -> list[NewestRow]:
    """Return the newest rows (of one view) in order of machine, view, reader and lane.

    `newest` and `complete` are those of `fetch_latest`. Only the values of `metrics` are needed, None for all; rows may
    have more.
    """
    rows = None if newest is None else newest.read(cluster, machines, view, metrics)
    if rows is None:
        complete()
        rows = _rows_of(_query(handle, cluster, machines, view))
    return sorted(rows, key=attrgetter("place"))


def _query(handle: Handle, cluster: str, machines: Sequence[str], view: str | None) -> list[ResultRow]:
    parameters = {"cluster": cluster, "machines": list(machines)}
    return fetch_newest(handle, _SELECT_LATEST, "latest", parameters, key=4, rank=itemgetter(-1, 4), view=view)


def _rows_of(found: Iterable[tuple[Any, ...]]) -> list[NewestRow]:
    """Return rows of `latest`, as queried, as samples."""
    rows = []
    for *head, int_ids, int_values, float_ids, float_values, _ in found:
        ids, cells = (*int_ids, *float_ids), (*int_values, *float_values)
        values = {
            BY_ID[number].name: value_of(BY_ID[number], cell)
            for number, cell in zip(ids, cells, strict=True)
            if number in BY_ID  # a newer build may have written metrics unknown to this build
        }
        rows.append(NewestRow(**dict(zip(_QUERIED, head, strict=True)), values=values))
    return rows


def _texts(handle: Handle, parameters: dict[str, Any], ids: set[int], cache: ReadCache) -> dict[int, dict[str, Value]]:
    found, missing = cache.texts.split(ids - {EMPTY_SET})
    if missing:
        fetched: dict[int, dict[str, Value]] = defaultdict(dict)
        for number, metric, text in handle.query(_INFO, parameters={**parameters, "ids": missing}).result_rows:
            fetched[number][metric] = text
        cache.texts.keep(fetched)
        found.update(fetched)
    return found


SampleDims = dict[SampleKey, dict[tuple[str, tuple[str, ...]], tuple[float | None, int]]]
"""Sample to (metric, labels) to (stored value, absence set)."""


def _dims(
    handle: Handle,
    cache: ReadCache,
    may_keep: set[Subject],
    subjects_of: SubjectsOf,
    cluster: str,
    rows: Sequence[NewestRow],
) -> tuple[SampleDims, set[int]]:
    machines = {row.machine for row in rows}
    known = cache.has_dims.known({(cluster, machine) for machine in machines})
    machines -= {machine for (_, machine), has_dims in known.items() if not has_dims}
    places = {row.place for row in rows if row.machine in machines}
    if not places:
        return {}, set()
    subjects = {one.number: one for one in subjects_of(cluster, sorted(machines))}
    newest_at = {place[:4]: place[4] for place in places}
    chosen = [number for number, one in subjects.items() if one[:4] in newest_at]
    dims: SampleDims = defaultdict(dict)
    sets = set()
    for numbers in subject_slices(chosen):
        instants = sorted({newest_at[subjects[number][:4]] for number in numbers})
        parameters: dict[str, Any] = {"subjects": numbers, "instants": list(map(_instant, instants))}
        for number, at, metric, labels, int_value, float_value, absence_set in handle.query(
            _DIMS, parameters=parameters
        ).result_rows:
            one = subjects[number]
            place = one.machine, one.view, one.reader, one.lane, at
            if place in places:
                dims[place][metric, tuple(labels)] = (float_value if int_value is None else int_value, absence_set)
                sets.add(absence_set)
    unknown = machines - {place[0] for place in dims} - {machine for _, machine in known}
    with_dims: set[str] = set()
    for numbers in subject_slices([number for number, one in subjects.items() if one.machine in unknown]):
        found = handle.query(_SUBJECTS_WITH_DIMS, parameters={"subjects": numbers}).result_rows
        with_dims |= {subjects[number].machine for (number,) in found}
    for machine in unknown:
        cache.has_dims.keep(may_keep, (cluster, machine), machine in with_dims)
    return dims, sets


def _instant(at: int) -> str:
    """Return an instant as a parameter: the engine would read a number with fewer digits as a date."""
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
