"""Bulk inputs of the rules, computed sample by sample, for the store in memory."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, ValueType
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.readings import Column, EventCount, NewestColumns, ViewColumns, labelled
from gpufleet.model.stored.samples import StoredEvent, StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import View, ViewKind

T = TypeVar("T")

MIG_WINDOW = 1200 * NANOS


def newest_columns(
    latest: Mapping[str, Sequence[StoredSample]],
    readers: Mapping[str, Sequence[ReaderStatus]],
    metrics: Collection[str],
) -> NewestColumns:
    """Return the newest samples of machines and their GPUs in columns; see `ports.FactStore.newest_columns`."""
    rows = [
        (machine, one)
        for machine in sorted(latest)
        for one in latest[machine]
        if one.sample.view is None or one.sample.view.kind is ViewKind.GPU
    ]
    samples = [one.sample for _, one in rows]
    devices, device = _numbered((machine, _key(one.sample)) for machine, one in rows)
    machines, machine = _numbered(machine for machine, _ in rows)
    names, reader = _numbered(sample.reader for sample in samples)
    lanes, lane = _numbered(sample.lane.value for sample in samples)
    addresses, address = _numbered((sample.view and sample.view.pci_address) or "" for sample in samples)
    absences = [_chosen(sample, metrics, absent=True) for sample in samples]
    texts = [_chosen(sample, metrics, absent=False) for sample in samples]
    cells = [_cells(sample) for sample in samples]
    declared = {(id_, one.reader, one.lane): one.interval_seconds for id_, many in readers.items() for one in many}
    return NewestColumns(
        machines=machines,
        machine=machine,
        views=[key for _, key in devices],
        view=device,
        readers=names,
        reader=reader,
        lanes=lanes,
        lane=lane,
        imported=np.array([sample.provenance is Provenance.IMPORTED for sample in samples], bool),
        measured_at=np.array([sample.measured_at for sample in samples], np.int64),
        received_at=np.array([one.received_at for _, one in rows], np.int64),
        driver_session=np.array([sample.driver_session for sample in samples], np.uint64),
        interval_seconds=np.array(
            [declared.get((id_, s.reader, s.lane), np.nan) for (id_, _), s in zip(rows, samples, strict=True)]
        ),
        values={
            name: np.array([one.get(name, np.nan) for one in cells], np.float64)
            for name in metrics
            if any(name in one for one in cells)
        },
        absence_set=np.arange(len(rows), dtype=np.uint64),
        absences=dict(enumerate(absences)),
        info_set=np.arange(len(rows), dtype=np.uint64),
        texts=dict(enumerate(texts)),
        addresses=[text for text in addresses if text],
        address=_without_empty(addresses, address),
        mig_layouts=_mig_layouts(latest),
    )


def duplicate_views(reports: Iterable[tuple[str, str, View, int, int]], since: int) -> ViewColumns:
    """Return GPU UUIDs of several machines, from (cluster, machine, view, reported_at, received_at) of each report."""
    newest: dict[tuple[str, str, str], tuple[int, int]] = {}
    for cluster, machine, view, reported_at, received_at in reports:
        if view.kind is ViewKind.GPU and view.uuid and reported_at >= since:
            place = view.key, cluster, machine
            newest[place] = max(newest.get(place, (0, 0)), (reported_at, received_at))
    several = sorted(place for place in newest if sum(other[0] == place[0] for other in newest) > 1)
    return ViewColumns(
        cluster=[place[1] for place in several],
        machine=[place[2] for place in several],
        view=[place[0] for place in several],
        received_at=[newest[place][1] for place in several],
    )


def event_counts(events: Iterable[StoredEvent]) -> tuple[EventCount, ...]:
    """Return counts of distinct events in order of their fields."""
    found: dict[tuple[str, str, str, int], list[int]] = {}
    for one in events:
        found.setdefault((one.machine, one.view or "", one.kind, one.code), []).append(one.at)
    return tuple(EventCount(*key, at=tuple(sorted(at)[-64:]), count=len(at)) for key, at in sorted(found.items()))


def _key(sample: Sample) -> str:
    return sample.view.key if sample.view else ""


def _numbered(cells: Iterable[T]) -> tuple[list[T], Column]:
    """Return the distinct cells, and the position of each cell among them."""
    numbers: dict[T, int] = {}
    places = [numbers.setdefault(cell, len(numbers)) for cell in cells]
    return list(numbers), np.array(places, np.int32)


def _without_empty(texts: Sequence[str], places: Column) -> Column:
    """Return the positions among the texts that are not empty, -1 for an empty one."""
    kept = np.cumsum([bool(text) for text in texts]) - 1
    return np.array([kept[place] if texts[place] else -1 for place in places.tolist()], np.int32)


def _chosen(sample: Sample, metrics: Collection[str], *, absent: bool) -> dict[str, str]:
    """Return the reasons or the texts of metrics; a value with dimensions is requested by a name with labels."""
    wanted = {name.partition("{")[0] for name in metrics}
    found = {name: value for name, value in sample.values.items() if name in wanted}
    if absent:
        return {name: value.reason.value for name, value in found.items() if isinstance(value, Absent)}
    return {
        name: value
        for name, value in found.items()
        if CATALOGUE[name].type is ValueType.TEXT and isinstance(value, str)
    }


def _cells(sample: Sample) -> dict[str, float]:
    """Return the numbers of a sample, states by position, values with dimensions by their labels."""
    values = [(name, name, value) for name, value in sample.values.items()]
    values += [(dim.metric, labelled(dim.metric, *dim.labels), dim.value) for dim in sample.dims]
    return {name: float(cell) for metric, name, value in values if (cell := _number(metric, value)) is not None}


def _number(metric: str, value: Value | Absent) -> float | None:
    of = CATALOGUE[metric]
    if isinstance(value, Absent) or of.type is ValueType.TEXT:
        return None
    return of.states.index(value) if isinstance(value, str) else value


def _mig_layouts(latest: Mapping[str, Sequence[StoredSample]]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], list[str]] = {}
    for machine, samples in latest.items():
        seen = [one for one in samples if one.sample.view is None or one.sample.view.kind is not ViewKind.VGPU]
        newest = max((one.received_at for one in seen), default=0)
        profiles = {
            one.sample.view: one.sample.values["mig_profile"]
            for one in seen
            if one.sample.view is not None
            and one.sample.view.kind is ViewKind.MIG
            and isinstance(one.sample.values.get("mig_profile"), str)
            and one.received_at >= newest - MIG_WINDOW
        }
        for view, profile in profiles.items():
            if view.parent is not None:
                found.setdefault((machine, view.parent), []).append(str(profile))
    return {gpu: ", ".join(sorted(profiles)) for gpu, profiles in found.items()}
