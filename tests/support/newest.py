"""Newest readings in columns, from samples: what a store returns for `newest_columns`."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.readings import NewestColumns, labelled
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import ViewKind


def newest_columns(
    stored: Mapping[str, Sequence[StoredSample]],
    metrics: Collection[str],
    readers: Mapping[str, Sequence[ReaderStatus]] | None = None,
    mig_layouts: Mapping[tuple[str, str], str] | None = None,
) -> NewestColumns:
    """Return the samples of machines by id, with these metrics. MIG devices and vGPU instances are left out."""
    machines, views = list(stored), [""]
    names: list[str] = []
    lanes: list[str] = []
    addresses: list[str] = []
    rows = [
        (machine, one)
        for machine, samples in stored.items()
        for one in samples
        if one.sample.view is None or one.sample.view.kind is ViewKind.GPU
    ]
    intervals = {
        (machine, one.reader, one.lane): one.interval_seconds
        for machine, statuses in (readers or {}).items()
        for one in statuses
    }
    absences: dict[frozenset[tuple[str, str]], int] = {}
    texts: dict[frozenset[tuple[str, str]], int] = {}
    values: dict[str, list[float]] = {}
    for at, (_, one) in enumerate(rows):
        for metric, value in _values(one.sample).items():
            if metric in metrics and not isinstance(value, Absent) and _is_number(metric):
                values.setdefault(metric, [np.nan] * len(rows))[at] = _number(metric, value)
    samples = [one.sample for _, one in rows]
    return NewestColumns(
        machines=machines,
        machine=np.array([machines.index(machine) for machine, _ in rows], np.int64),
        view=np.array([_place(views, one.view.key if one.view else "") for one in samples], np.int64),
        views=views,
        reader=np.array([_place(names, one.reader) for one in samples], np.int64),
        readers=names,
        lane=np.array([_place(lanes, one.lane) for one in samples], np.int64),
        lanes=lanes,
        imported=np.array([one.provenance is Provenance.IMPORTED for one in samples], bool),
        measured_at=np.array([one.measured_at for one in samples], np.int64),
        received_at=np.array([one.received_at for _, one in rows], np.int64),
        driver_session=np.array([one.driver_session for one in samples], np.uint64),
        interval_seconds=np.array(
            [intervals.get((machine, one.sample.reader, one.sample.lane), np.nan) for machine, one in rows], np.float64
        ),
        values={name: np.array(cells, np.float64) for name, cells in values.items()},
        absence_set=np.array([_set(absences, _absences(one, metrics)) for one in samples], np.uint64),
        absences={number: dict(found) for found, number in absences.items()},
        info_set=np.array([_set(texts, _texts(one, metrics)) for one in samples], np.uint64),
        texts={number: dict(found) for found, number in texts.items()},
        addresses=addresses,
        address=np.array(
            [
                -1 if one.view is None or not one.view.pci_address else _place(addresses, one.view.pci_address)
                for one in samples
            ],
            np.int64,
        ),
        mig_layouts=mig_layouts,
    )


def _values(sample: Sample) -> dict[str, Value | Absent]:
    """Return all values by the names that the store gives them."""
    return {**sample.values, **{labelled(one.metric, *one.labels): one.value for one in sample.dims}}


def _is_number(metric: str) -> bool:
    return CATALOGUE[metric.partition("{")[0]].kind is not MetricKind.INFO


def _number(metric: str, value: Value) -> float:
    row = CATALOGUE[metric.partition("{")[0]]
    return float(row.states.index(str(value)) if row.kind is MetricKind.STATE else value)


def _absences(sample: Sample, metrics: Collection[str]) -> frozenset[tuple[str, str]]:
    found = _values(sample).items()
    return frozenset(
        (name, str(value.reason)) for name, value in found if isinstance(value, Absent) and name in metrics
    )


def _texts(sample: Sample, metrics: Collection[str]) -> frozenset[tuple[str, str]]:
    found = sample.values.items()
    return frozenset(
        (name, value) for name, value in found if isinstance(value, str) and name in metrics and not _is_number(name)
    )


def _place(texts: list[str], text: str) -> int:
    if text not in texts:
        texts.append(text)
    return texts.index(text)


def _set(sets: dict[frozenset[tuple[str, str]], int], found: frozenset[tuple[str, str]]) -> int:
    return sets.setdefault(found, len(sets)) if found else 2**63
