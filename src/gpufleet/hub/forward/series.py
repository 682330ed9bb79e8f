"""Conversion of batches to remote-write points, each value once at its measurement time. No I/O.

A receiver may reject a whole request for one sample that is older than another of its series. So the newest forwarded
instant is kept for each subject: machine, device, reader and lane, whose readings share their instants.

Measurements of `REPEATED` of a GPU that another reader reports as lost are not forwarded: readers of the database may
take the greatest value of all readers.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gpufleet.codecs.remote_write.encode import WritePoint
from gpufleet.codecs.remote_write.series_cache import NAME
from gpufleet.dialects.native import PREFIX
from gpufleet.fleet.readings import MEASURING_LANES, REPEATED, STATE
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, MetricKind, Storage, ValueType
from gpufleet.model.catalogue import Subject as SubjectKind
from gpufleet.model.device_state import LOST
from gpufleet.model.reading import Provenance
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES
from gpufleet.model.stored.samples import FORWARDED, AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.model.view import View, ViewKind
from gpufleet.model.wire.batch import Cell, DimBlock, SampleBlock, WireAbsence

MILLISECOND = 10**6

READING_ABSENT = Metric(
    id=0,
    name="reading_absent",
    kind=MetricKind.GAUGE,
    type=ValueType.INT,
    dims=("metric", "reason"),
    help="1 for a reading that is absent because it is 0",
    subjects=(SubjectKind.GPU, SubjectKind.MIG, SubjectKind.VGPU),
    lane=Lane.FAST,
    storage=Storage.DIM,
)
"""Family of absences on the native page. Of those, only `ambiguous_zero` is forwarded: rules and dashboards need it."""

_METRICS = {**CATALOGUE, READING_ABSENT.name: READING_ABSENT}

RETENTION_NS = 3600 * NANOS
"""Retention of a subject without new values. Any later value is newer than those forwarded."""

Subject = tuple[str, str, str, str, str]
"""Cluster, machine, key of the view (empty for the machine itself), reader and lane."""

Place = tuple[Subject, str]
"""A subject, and the name of a metric with dimensions; an empty text for all metrics without dimensions."""


MetricValue = tuple[Metric, tuple[str, ...], Cell]
"""A metric, the values of its dimensions, and its value."""


class _LastSent(msgspec.Struct):
    """Newest forwarded instant of a place.

    Attributes:
        at: nanoseconds since 1970.
        names: metrics, with the values of their dimensions, that had a value at this instant.
        before: metrics that had a value at the preceding instant.
    """

    at: int
    names: frozenset[tuple[str, tuple[str, ...]]]
    before: frozenset[tuple[str, tuple[str, ...]]] = frozenset()


LOSS_NS = int(MISSED_PASSES * LANE_SECONDS[Lane.SLOW]) * NANOS
"""How long a loss counts after the newest report of it: the interval of its reader is not known here."""


class _ReportedLosses:
    """GPUs that a reader which imports nothing reports as lost, with the first and newest report of each reader."""

    def __init__(self) -> None:
        self._losses: dict[tuple[str, str, str], dict[str, tuple[int, int]]] = {}

    def record(self, accepted: AcceptedBatch, block: SampleBlock, row: int) -> None:
        """Record the state of the GPU of a row, if it has any."""
        state = block.columns[block.metrics.index(STATE)][row] if STATE in block.metrics else None
        if state is None or block.provenance == Provenance.IMPORTED:
            return
        place, at = _subject(accepted, block, row)[:3], block.measured_at[row]
        of_gpu = self._losses.get(place, {})
        if state == LOST:
            first, newest = of_gpu.get(block.reader, (at, at))
            self._losses.setdefault(place, of_gpu)[block.reader] = min(first, at), max(newest, at)
        elif block.reader in of_gpu and at > of_gpu[block.reader][1]:
            del of_gpu[block.reader]
            if not of_gpu:
                del self._losses[place]

    def cover(self, accepted: AcceptedBatch, block: SampleBlock | DimBlock, row: int) -> bool:
        """Return whether a row has repeated measurements of a lost GPU, or of a part of it."""
        if not self._losses or block.view[row] < 0:
            return False
        if block.provenance not in REPEATED or block.lane not in MEASURING_LANES:
            return False
        view = accepted.batch.views[block.view[row]]
        cluster, machine, key = _subject(accepted, block, row)[:3]
        of_gpu = self._losses.get((cluster, machine, view.parent or key), {})
        return any(first <= block.measured_at[row] <= newest + LOSS_NS for first, newest in of_gpu.values())

    def prune(self, before: int) -> None:
        """Drop the GPUs without a report since an instant."""
        self._losses = {
            place: of_gpu for place, of_gpu in self._losses.items() if max(at for _, at in of_gpu.values()) >= before
        }


class ForwardSeries:
    """Converts batches to points. Use it from one thread at a time.

    Attributes:
        late: values left out because newer values of their series were already forwarded.
    """

    def __init__(self, labels: Mapping[str, str], *, sends_late: bool) -> None:
        """Set labels for every series, and whether to forward values older than others already forwarded."""
        self._more = {**labels, "job": labels.get("job", "gpufleet"), FORWARDED: "gpufleet"}
        self._sends_late = sends_late
        self._last_sent: dict[Place, _LastSent] = {}
        self._losses = _ReportedLosses()
        self._newest = self._pruned_at = 0
        self.late = 0

    def points(self, accepted: Sequence[AcceptedBatch]) -> Iterator[WritePoint]:
        """Return the points of batches, in order of time within each series."""
        zeros = [_ambiguous_zeros(one.batch.absences) for one in accepted]
        rows = [
            (block.measured_at[row], number, block, row)
            for number, one in enumerate(accepted)
            for block in one.batch.samples
            for row in range(len(block.machine))
        ]
        rows.sort(key=lambda row: row[0])  # stable: rows of one instant keep their order of arrival
        for _, number, block, row in rows:
            self._losses.record(accepted[number], block, row)
        for _, number, block, row in rows:
            yield from self._samples(accepted[number], block, row, zeros[number].get(block.absence[row], ()))
        for one in accepted:
            for dims in one.batch.dims:
                yield from self._dims(one, dims)
        self._prune()

    def _samples(
        self, accepted: AcceptedBatch, block: SampleBlock, row: int, zeros: Sequence[MetricValue]
    ) -> Iterator[WritePoint]:
        values: list[MetricValue] = []
        if not self._losses.cover(accepted, block, row):
            values += [
                (metric, (), cell)
                for name, column in zip(block.metrics, block.columns, strict=True)
                if (cell := column[row]) is not None and (metric := CATALOGUE[name]).kind is not MetricKind.INFO
            ]
            values += zeros
        yield from self._row(accepted, block, row, (_subject(accepted, block, row), ""), values)

    def _dims(self, accepted: AcceptedBatch, block: DimBlock) -> Iterator[WritePoint]:
        metric = CATALOGUE[block.metric]
        together: dict[tuple[int, Subject], list[int]] = {}
        for row, at in enumerate(block.measured_at):
            together.setdefault((at, _subject(accepted, block, row)), []).append(row)
        for (_, subject), rows in sorted(together.items()):
            values: list[MetricValue] = [
                (metric, tuple(column[row] for column in block.labels), cell)
                for row in rows
                if (cell := block.values[row]) is not None and not self._losses.cover(accepted, block, row)
            ]
            yield from self._row(accepted, block, rows[0], (subject, block.metric), values)

    def _row(
        self,
        accepted: AcceptedBatch,
        block: SampleBlock | DimBlock,
        row: int,
        place: Place,
        values: list[MetricValue],
    ) -> Iterator[WritePoint]:
        """Return the points of one place and instant.

        An instant can arrive in parts. So a series that has no value at an instant gets a stale marker there, but only
        once the next instant begins.
        """
        at = block.measured_at[row] // MILLISECOND * MILLISECOND
        base = self._base(accepted, block, row)
        names = frozenset((metric.name, labels) for metric, labels, _ in values)
        last = self._last_sent.get(place)
        if last is not None and at == last.at:
            # A further part of the same instant: leave out values already forwarded.
            values = [one for one in values if (one[0].name, one[1]) not in last.names]
            last.names |= names
        elif last is not None and at < last.at:
            if not self._sends_late:
                self.late += len(values)
                return
        else:
            if last is not None:
                for name, labels in sorted(last.before - last.names):
                    yield from _points(base, _METRICS[name], labels, None, last.at)
            self._last_sent[place] = _LastSent(at, names, last.names if last is not None else frozenset())
            self._newest = max(self._newest, at)
        for metric, labels, value in values:
            yield from _points(base, metric, labels, value, at)

    def _base(self, accepted: AcceptedBatch, block: SampleBlock | DimBlock, row: int) -> dict[str, str]:
        """Return the labels of every series of a row; the identities come from the hub, not from the sender."""
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

    def _prune(self) -> None:
        if self._newest - self._pruned_at < RETENTION_NS // 4:
            return
        self._pruned_at = self._newest
        self._losses.prune(self._newest - RETENTION_NS)
        self._last_sent = {
            place: last for place, last in self._last_sent.items() if last.at >= self._newest - RETENTION_NS
        }


def _ambiguous_zeros(absences: Sequence[Sequence[WireAbsence]]) -> dict[int, list[MetricValue]]:
    """Return the readings that are absent because they are 0, by position of the set of absences."""
    found: dict[int, list[MetricValue]] = {}
    for number, own in enumerate(absences):
        for one in own:
            if one.reason is Reason.AMBIGUOUS_ZERO:
                found.setdefault(number, []).append((READING_ABSENT, (one.metric, one.reason), 1))
    return found


def _subject(accepted: AcceptedBatch, block: SampleBlock | DimBlock, row: int) -> Subject:
    view = block.view[row]
    key = accepted.batch.views[view].key if view >= 0 else ""
    return accepted.batch.cluster, accepted.machine_ids[block.machine[row]], key, block.reader, block.lane


def _device(view: View) -> dict[str, str]:
    labels = {"uuid": view.uuid or "", "pci_address": view.pci_address or "", "kind": view.kind, "side": view.side}
    if view.kind is not ViewKind.GPU:
        labels["gpu"] = (view.parent or "").removeprefix(f"{ViewKind.GPU}/")
    return labels if view.uuid or not view.instance else {**labels, "device_instance": view.instance}


def _points(
    base: Mapping[str, str], metric: Metric, values: tuple[str, ...], value: Cell, at: int
) -> Iterator[WritePoint]:
    """Return the points of a reading, with the series names of the native page; a value of None is a stale marker."""
    kind = "counter" if metric.kind is MetricKind.COUNTER else "gauge"
    labels = {**base, **dict(zip(metric.dims, values, strict=True)), NAME: PREFIX + metric.name}
    if metric.kind is MetricKind.STATE:
        for state in metric.states:
            yield WritePoint({**labels, "state": state}, None if value is None else float(state == value), at, kind)
    elif not isinstance(value, str):
        yield WritePoint(labels, value, at, kind)
