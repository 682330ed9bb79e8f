"""What readers tell of one subject, as the readings of a document: merged by precedence, old ones judged stale. Pure.

Most of what an agent knows stays as it is from round to round. What is made of a sample is kept with it and taken again
while the sample is the newest of its lane, so that a round costs what it brings, and who compares two documents sees by
identity what has not changed.
"""

import datetime as dt
from collections.abc import Iterable, Sequence

from gpufleet.agent.collect.state import Kept, State
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.process import Process
from gpufleet.model.reading import DimReading, Reading, Sample, Value
from gpufleet.model.snapshot import ProcessReport, Source
from gpufleet.model.time import to_datetime

_ORDER = {name: position for position, name in enumerate(CATALOGUE)}

ReaderLane = tuple[str, Lane]
"""A reader and its lane."""

Dims = dict[tuple[str, ...], DimReading]
"""Readings of one metric, by the values of its dimensions."""


class Told:
    """The readings of one sample. Never changed once made.

    Attributes:
        sample: what they are made of.
        stale: the absence that stands for each of its values, as it is too old; or None.
        readings: catalogue name to reading.
        dims: catalogue name to readings, of metrics with dimensions.
        processes: who uses the device; None where the sample does not list them, or did too long ago: processes come
            and go, an old list is none.
        source: where they are from.
    """

    __slots__ = ("dims", "processes", "readings", "sample", "source", "stale")

    def __init__(self, sample: Sample, stale: Absent | None, before: "Told | None") -> None:
        """Make them; labels that `before` has too are shared with it."""
        self.sample, self.stale = sample, stale
        known: dict[str, Dims] = {} if before is None else before.dims
        at, side = to_datetime(sample.measured_at), sample.view.side if sample.view else ""
        self.readings = {
            name: _reading(stale or value, sample.reader, side, at) for name, value in sample.values.items()
        }
        self.dims: dict[str, Dims] = _dims(sample, stale, at, known)
        self.source = Source(reader=sample.reader, lane=sample.lane, provenance=sample.provenance, measured_at=at)
        self.processes = (
            None
            if sample.processes is None or stale is not None
            else tuple([_process(process, sample.reader, side, at) for process in sample.processes])
        )


def told(source: ReaderLane, kept: Kept, state: State, now: float, before: Told | None) -> Told:
    """Return the readings of a kept sample; `before` again if it is of this very sample, and as fresh or stale."""
    stale = None
    if state.is_stale(*source, kept.ended, now):
        stale = Absent(Reason.STALE, state.statuses[source].last_error)
    if before is not None and before.sample is kept.sample and before.stale == stale:
        return before
    return Told(kept.sample, stale, before)


def merge(tolds: Sequence[Told], before: dict[str, Reading]) -> dict[str, Reading]:
    """Take each metric from the most trusted reader that has a value, or else that says why there is none.

    Args:
        tolds: the most trusted first.
        before: what the last merge of this subject gave; most often it has the same metrics in the same order.
    """
    merged: dict[str, Reading] = {}
    for one in tolds:
        merged.update(one.readings)
    if len(merged) != sum([len(one.readings) for one in tolds]):
        merged = {}
        for one in tolds:
            for name, reading in one.readings.items():
                known = merged.get(name)
                if known is None or (known.value is None and reading.value is not None):
                    merged[name] = reading
    if merged.keys() == before.keys():
        return {name: merged[name] for name in before}
    return {name: merged[name] for name in sorted(merged, key=_ORDER.__getitem__)}


def merge_dimensions(tolds: Sequence[Told]) -> tuple[DimReading, ...]:
    """Take each metric's values whole from the most trusted reader that has any: readers can word dimensions apart."""
    merged: dict[str, Dims] = {}
    owners: dict[str, str] = {}
    for one in tolds:
        reader = one.sample.reader
        for metric, found in one.dims.items():
            known = merged.get(metric)
            if known is None:
                merged[metric], owners[metric] = found, reader
                continue
            if owners[metric] != reader and _any_value(known):
                continue
            if _any_value(found):
                owners[metric] = reader
            merged[metric] = known = dict(known)
            for labels, reading in found.items():
                _put(known, labels, reading)
    return tuple([reading for metric in sorted(merged, key=_ORDER.__getitem__) for reading in merged[metric].values()])


def processes_of(tolds: Iterable[Told]) -> tuple[ProcessReport, ...] | None:
    """Return the list of the most trusted reader that has a fresh one."""
    return next((one.processes for one in tolds if one.processes is not None), None)


def _reading(value: Value | Absent, reader: str, side: str, at: dt.datetime) -> Reading:
    if isinstance(value, Absent):
        return Reading(absent=value.reason, detail=value.detail, reader=reader, side=side, measured_at=at)
    return Reading(value=value, reader=reader, side=side, measured_at=at)


def _dims(sample: Sample, stale: Absent | None, at: dt.datetime, before: dict[str, Dims]) -> dict[str, Dims]:
    dims: dict[str, Dims] = {}
    for dim in sample.dims:
        of_metric = dims.setdefault(dim.metric, {})
        known = before.get(dim.metric, {}).get(dim.labels)
        labels = known.labels if known else dict(zip(CATALOGUE[dim.metric].dims, dim.labels, strict=True))
        value = stale or dim.value
        if isinstance(value, Absent):
            reading = DimReading(
                metric=dim.metric,
                labels=labels,
                absent=value.reason,
                detail=value.detail,
                reader=sample.reader,
                measured_at=at,
            )
        else:
            reading = DimReading(metric=dim.metric, labels=labels, value=value, reader=sample.reader, measured_at=at)
        _put(of_metric, dim.labels, reading)
    return dims


def _put(known: Dims, labels: tuple[str, ...], reading: DimReading) -> None:
    """Put a reading where there is none, or only an absence."""
    there = known.get(labels)
    if there is None or (there.value is None and reading.value is not None):
        known[labels] = reading


def _any_value(dims: Dims) -> bool:
    return any(reading.value is not None for reading in dims.values())


def _process(process: Process, reader: str, side: str, at: dt.datetime) -> ProcessReport:
    return ProcessReport(
        pid=process.pid,
        kinds=process.kinds,
        start_time=process.start_time,
        name=process.name,
        readings={name: _reading(value, reader, side, at) for name, value in process.values.items()},
    )
