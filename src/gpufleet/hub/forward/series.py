"""Batches as series, each value once at the instant of its measurement. Pure, but for what it remembers.

A receiver may refuse a whole request for one sample that is older than another of its series. What was passed on last
is therefore remembered by subject: machine, device, reader and lane, whose readings share their instants.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gpufleet.codecs.remote_write.encode import Point
from gpufleet.codecs.remote_write.known import NAME
from gpufleet.dialects.native import PREFIX
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind
from gpufleet.model.stored.samples import FORWARDED, Accepted
from gpufleet.model.time import NANOS
from gpufleet.model.view import View, ViewKind
from gpufleet.model.wire.batch import Cell, DimBlock, SampleBlock

MILLISECOND = 10**6

KEPT = 3600 * NANOS
"""So long a subject of which nothing comes is remembered: whatever comes later is newer than what was passed on."""

Subject = tuple[str, str, str, str, str]
"""Cluster, machine, key of the view (empty for the machine itself), reader and lane."""

Place = tuple[Subject, str]
"""A subject, and a metric with dimensions; an empty text for all of those without."""


Told = tuple[Metric, tuple[str, ...], Cell]
"""A metric, the values of its dimensions, and its value."""


class _Last(msgspec.Struct):
    """What was passed on last.

    Attributes:
        at: its instant, nanoseconds since 1970.
        names: metrics, with the values of their dimensions, that had a value then.
        before: those that had one at the instant before.
    """

    at: int
    names: frozenset[tuple[str, tuple[str, ...]]]
    before: frozenset[tuple[str, tuple[str, ...]]] = frozenset()


class ForwardSeries:
    """Makes points of batches. One thread at a time."""

    def __init__(self, labels: Mapping[str, str], *, sends_late: bool) -> None:
        """Take labels for every series, and whether values go out that are older than newer ones of theirs."""
        self._more = {**labels, "job": labels.get("job", "gpufleet"), FORWARDED: "gpufleet"}
        self._sends_late = sends_late
        self._told: dict[Place, _Last] = {}
        self._newest = self._forgot_at = 0
        self.late = 0  # values that were not passed on, because newer ones of theirs were

    def points(self, accepted: Sequence[Accepted]) -> Iterator[Point]:
        """Return the points of batches, in order of time for each series."""
        rows = [
            (block.measured_at[row], one, block, row)
            for one in accepted
            for block in one.batch.samples
            for row in range(len(block.machine))
        ]
        rows.sort(key=lambda row: row[0])  # what is of one instant stays in the order in which it came
        for _, one, block, row in rows:
            yield from self._samples(one, block, row)
        for one in accepted:
            for dims in one.batch.dims:
                yield from self._dims(one, dims)
        self._forget()

    def _samples(self, accepted: Accepted, block: SampleBlock, row: int) -> Iterator[Point]:
        values: list[Told] = [
            (metric, (), cell)
            for name, column in zip(block.metrics, block.columns, strict=True)
            if (cell := column[row]) is not None and (metric := CATALOGUE[name]).kind is not MetricKind.INFO
        ]
        yield from self._row(accepted, block, row, (_subject(accepted, block, row), ""), values)

    def _dims(self, accepted: Accepted, block: DimBlock) -> Iterator[Point]:
        metric = CATALOGUE[block.metric]
        together: dict[tuple[int, Subject], list[int]] = {}
        for row, at in enumerate(block.measured_at):
            together.setdefault((at, _subject(accepted, block, row)), []).append(row)
        for (_, subject), rows in sorted(together.items()):
            values: list[Told] = [
                (metric, tuple(column[row] for column in block.labels), cell)
                for row in rows
                if (cell := block.values[row]) is not None
            ]
            yield from self._row(accepted, block, rows[0], (subject, block.metric), values)

    def _row(
        self,
        accepted: Accepted,
        block: SampleBlock | DimBlock,
        row: int,
        place: Place,
        values: list[Told],
    ) -> Iterator[Point]:
        """Return the points of what is of one instant.

        An instant can come in parts. So what had a value before it and has none in it is marked as stale, at that
        instant, once the next one begins.
        """
        at = block.measured_at[row] // MILLISECOND * MILLISECOND
        base = self._base(accepted, block, row)
        names = frozenset((metric.name, labels) for metric, labels, _ in values)
        told = self._told.get(place)
        if told is not None and at == told.at:
            # A part of the same instant: what was told already is not told again.
            values = [one for one in values if (one[0].name, one[1]) not in told.names]
            told.names |= names
        elif told is not None and at < told.at:
            if not self._sends_late:
                self.late += len(values)
                return
        else:
            if told is not None:
                for name, labels in sorted(told.before - told.names):
                    yield from _points(base, CATALOGUE[name], labels, None, told.at)
            self._told[place] = _Last(at, names, told.names if told is not None else frozenset())
            self._newest = max(self._newest, at)
        for metric, labels, value in values:
            yield from _points(base, metric, labels, value, at)

    def _base(self, accepted: Accepted, block: SampleBlock | DimBlock, row: int) -> dict[str, str]:
        """Return the labels of every series of a row. Whose it is, the hub says: no sender names a cluster here."""
        batch = accepted.batch
        machine = batch.machines[block.machine[row]]
        labels = {
            **self._more,
            "cluster": batch.cluster,
            "instance": machine.name,
            "node": machine.hypervisor or machine.name,
            "machine": accepted.machine_ids[block.machine[row]],
            "reader": block.reader,
            "source": block.provenance,
        }
        if machine.hypervisor is not None:
            labels["vm_name"] = machine.name
        view = block.view[row]
        return labels | _device(batch.views[view]) if view >= 0 else labels

    def _forget(self) -> None:
        if self._newest - self._forgot_at < KEPT // 4:
            return
        self._forgot_at = self._newest
        self._told = {place: told for place, told in self._told.items() if told.at >= self._newest - KEPT}


def _subject(accepted: Accepted, block: SampleBlock | DimBlock, row: int) -> Subject:
    view = block.view[row]
    key = accepted.batch.views[view].key if view >= 0 else ""
    return accepted.batch.cluster, accepted.machine_ids[block.machine[row]], key, block.reader, block.lane


def _device(view: View) -> dict[str, str]:
    labels = {"uuid": view.uuid or "", "pci_address": view.pci_address or "", "kind": view.kind, "side": view.side}
    if view.kind is not ViewKind.GPU:
        labels["gpu"] = (view.parent or "").removeprefix(f"{ViewKind.GPU}/")
    return labels if view.uuid or not view.instance else {**labels, "device_instance": view.instance}


def _points(base: Mapping[str, str], metric: Metric, values: tuple[str, ...], value: Cell, at: int) -> Iterator[Point]:
    """Return the points of a reading, as the native page has its series; None for stale markers."""
    kind = "counter" if metric.kind is MetricKind.COUNTER else "gauge"
    labels = {**base, **dict(zip(metric.dims, values, strict=True)), NAME: PREFIX + metric.name}
    if metric.kind is MetricKind.STATE:
        for state in metric.states:
            yield Point({**labels, "state": state}, None if value is None else float(state == value), at, kind)
    elif not isinstance(value, str):
        yield Point(labels, value, at, kind)
