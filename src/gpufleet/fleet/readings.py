"""Readings of samples: precedence between readers, freshness, and merging. The only copy of these rules.

Agent and hub both answer from this module. An agent judges staleness by its own monotonic clock, a hub by its clock at
receipt; both pass the verdict in, so the merge itself is the same code and needs no clock.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.fleet.devices import device_name, hidden_devices, is_gone
from gpufleet.fleet.slot_keys import KeyReport, slot_keys
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.answer import AnswerDevice
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.catalogue.probe import PROBE_READER
from gpufleet.model.device_state import LOST, worst_state
from gpufleet.model.process import Process
from gpufleet.model.reading import DimReading, Provenance, Reading, Sample, Value, precedence
from gpufleet.model.snapshot import ProcessReport
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES, ReaderStatus, lane_interval
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind

LONGEST_SECONDS = 3600.0
"""Upper limit of freshness: no sample older than this is current, however slow its lane is declared."""

STATE = "gpu_state"

GUEST_READINESS = frozenset(
    {
        "guest_seen_timestamp_seconds",
        "guest_channel_open_timestamp_seconds",
        "guest_first_answer_timestamp_seconds",
        "guest_driver_ready_timestamp_seconds",
        "guest_hugepages",
    }
)
"""Metrics by which the agent of a host completes the probe of a guest."""

MEASURING_LANES = frozenset({Lane.FAST, Lane.SLOW})
"""Lanes that measure the use and condition of a device. The others describe the board, or record events."""

REPEATED = frozenset({Provenance.IMPORTED, Provenance.HOST_NETDATA})
"""Provenances of other projects' values: exporters and Netdata repeat those from before the loss of a GPU."""

_ORDER = {name: position for position, name in enumerate(CATALOGUE)}


Dims = dict[tuple[str, ...], DimReading]
"""Readings of one metric, by the values of its dimensions."""


class Freshness:
    """Judges the samples of one machine by the hub's clock at receipt."""

    def __init__(self, now: int, stale_after_seconds: float, readers: Sequence[ReaderStatus]) -> None:
        """Take the hub's time in nanoseconds since 1970, its freshness limit, and the intervals of the readers."""
        self._now = now
        self._stale_after = stale_after_seconds
        self._intervals = {(one.reader, one.lane): lane_interval(one) for one in readers}

    def age_seconds(self, received_at: int) -> float:
        """Return the seconds since receipt; 0 if the hub's clock moved back since."""
        return max(0, self._now - received_at) / NANOS

    def is_live(self, received_at: int) -> bool:
        """Return whether a receipt at that time proves that its machine is live now."""
        return not self._is_ahead(received_at) and self.age_seconds(received_at) <= self._stale_after

    def is_current(self, stored: StoredSample) -> bool:
        """Return whether the sample's values are current, by the interval of its lane."""
        sample = stored.sample
        passes = MISSED_PASSES * self.interval_of(sample)
        limit = min(max(self._stale_after, passes), max(LONGEST_SECONDS, self._stale_after))
        return not self._is_ahead(stored.received_at) and self.age_seconds(stored.received_at) <= limit

    def interval_of(self, sample: Sample) -> float:
        """Return the interval of the sample's lane in seconds."""
        return self._intervals.get((sample.reader, sample.lane), LANE_SECONDS[sample.lane])

    def _is_ahead(self, received_at: int) -> bool:
        """Return whether the receipt lies in the future: the hub's clock moved back, and the age is unknown."""
        return received_at - self._now > self._stale_after * NANOS


class StateReport(NamedTuple):
    """State of a device as one reader measured it.

    Attributes:
        state: of the catalogue's `gpu_state`.
        measured_at: nanoseconds since 1970.
        interval_seconds: interval of the reader's lane.
        is_imported: whether the reader imports.
    """

    state: str
    measured_at: int
    interval_seconds: float
    is_imported: bool


def deciding_state(reports: Sequence[StateReport]) -> int | None:
    """Return the position of the state that counts among the current states of one device; None without any.

    - The worst state counts: a reader that lost the device has evidence, whatever another reader still answers.
    - A state does not count if it was measured more than `MISSED_PASSES` intervals of its lane before the newest state:
      its reader may have stopped before the device recovered. By receipt, both can be current.
    - Imported states count only if no other reader has a state: exporters repeat old ones, by clocks of their own.
    - Of equal states, the first counts.

    Args:
        reports: states that are not stale, the most trusted reader first.
    """
    own = [place for place, one in enumerate(reports) if not one.is_imported] or range(len(reports))
    if not own:
        return None
    newest = max(reports[place].measured_at for place in own)
    kept = [
        place
        for place in own
        if newest - reports[place].measured_at <= MISSED_PASSES * reports[place].interval_seconds * NANOS
    ]
    worst = worst_state([reports[place].state for place in kept])
    return next(place for place in kept if reports[place].state == worst)


class SampleReadings:
    """The readings of one sample under one freshness verdict. Immutable; dimensions are built on first use.

    Attributes:
        sample: the source of the readings.
        stale: the absence that replaces each value because the sample is too old; None while it is current.
        measured_at: the sample's time of measurement.
        interval_seconds: interval of the sample's lane.
        readings: catalogue name to reading.
    """

    __slots__ = (
        *("_age", "_dims", "_known", "_received_at"),
        *("interval_seconds", "measured_at", "readings", "sample", "stale"),
    )

    def __init__(
        self,
        sample: Sample,
        stale: Absent | None,
        *,
        received_at: int | None = None,
        age_seconds: float | None = None,
        interval_seconds: float | None = None,
        before: "SampleReadings | None" = None,
    ) -> None:
        """Build the readings.

        Args:
            sample: as read or stored.
            stale: None if the sample is current.
            received_at: nanoseconds since 1970 of the receipt by a hub; None on an agent.
            age_seconds: age by the hub's clock; None on an agent.
            interval_seconds: interval of the sample's lane; None for the default of the lane.
            before: the readings of the previous sample of the same source; equal label sets are shared with it.
        """
        self.sample, self.stale = sample, stale
        self.measured_at = to_datetime(sample.measured_at)
        self._received_at = None if received_at is None else to_datetime(received_at)
        self._age = age_seconds
        self.interval_seconds = LANE_SECONDS[sample.lane] if interval_seconds is None else interval_seconds
        self._dims: dict[str, Dims] | None = None
        self._known: dict[str, Dims] = {} if before is None else before.dims
        side = sample.view.side if sample.view else ""
        self.readings = {name: self._reading(stale or value, side) for name, value in sample.values.items()}

    def replaced(self, why: Absent) -> "SampleReadings":
        """Return the readings with each value replaced by an absence."""
        other = SampleReadings(self.sample, why, interval_seconds=self.interval_seconds, before=self)
        other._received_at, other._age = self._received_at, self._age
        other.readings = all_absent(self.readings, why)
        return other

    @property
    def dims(self) -> dict[str, Dims]:
        """Readings of metrics with dimensions, by catalogue name. A metric that this build lacks is left out."""
        if self._dims is None:
            self._dims = self._build_dims(self._known)
            self._known = {}
        return self._dims

    @property
    def processes(self) -> tuple[ProcessReport, ...] | None:
        """Processes on the device; None if the sample lists none or is stale: an old list of processes is no list."""
        if self.sample.processes is None or self.stale is not None:
            return None
        side = self.sample.view.side if self.sample.view else ""
        return tuple(
            [process_report(process, self.sample.reader, side, self.measured_at) for process in self.sample.processes]
        )

    def _reading(self, value: Value | Absent, side: str) -> Reading:
        if isinstance(value, Absent):
            return Reading(
                absent=value.reason,
                detail=value.detail,
                reader=self.sample.reader,
                side=side,
                measured_at=self.measured_at,
                received_at=self._received_at,
                age_seconds=self._age,
            )
        return Reading(
            value=value,
            reader=self.sample.reader,
            side=side,
            measured_at=self.measured_at,
            received_at=self._received_at,
            age_seconds=self._age,
        )

    def _build_dims(self, known: Mapping[str, Dims]) -> dict[str, Dims]:
        dims: dict[str, Dims] = {}
        for dim in self.sample.dims:
            row = CATALOGUE.get(dim.metric)
            if row is None:
                continue
            before = known.get(dim.metric, {}).get(dim.labels)
            labels = before.labels if before else dict(zip(row.dims, dim.labels, strict=False))
            value = self.stale or dim.value
            reading = DimReading(
                metric=dim.metric,
                labels=labels,
                value=None if isinstance(value, Absent) else value,
                absent=value.reason if isinstance(value, Absent) else None,
                detail=value.detail if isinstance(value, Absent) else "",
                reader=self.sample.reader,
                measured_at=self.measured_at,
            )
            _put(dims.setdefault(dim.metric, {}), dim.labels, reading)
        return dims


def stored_readings(samples: Iterable[StoredSample], freshness: Freshness) -> tuple[SampleReadings, ...]:
    """Return the readings of stored samples of one subject, the most trusted reader first."""
    return tuple(
        [
            SampleReadings(
                stored.sample,
                None if freshness.is_current(stored) else Absent(Reason.STALE),
                received_at=stored.received_at,
                age_seconds=freshness.age_seconds(stored.received_at),
                interval_seconds=freshness.interval_of(stored.sample),
            )
            for stored in sorted(samples, key=lambda stored: precedence(stored.sample))
        ]
    )


def probe_readings(samples: Iterable[StoredSample], freshness: Freshness) -> dict[str, Reading]:
    """Return the readings of a machine's performance probe, and the readiness of a guest, by catalogue name."""
    own = [one for one in samples if one.sample.view is None]
    probe = merge(stored_readings([one for one in own if one.sample.reader == PROBE_READER], freshness))
    outside = [one for one in own if GUEST_READINESS.intersection(one.sample.values)]
    readiness = merge(stored_readings(outside, freshness))
    return probe | {name: reading for name, reading in readiness.items() if name in GUEST_READINESS}


def merge(
    sources: Sequence[SampleReadings],
    before: Mapping[str, Reading] | None = None,
    *,
    parent_loss: Absent | None = None,
) -> dict[str, Reading]:
    """Return one reading a metric in the catalogue's order.

    The first source with a value gives the reading. If no source has a value, the first source's absence stands.
    `deciding_state` chooses the state of a GPU. Measurements of `REPEATED` of a GPU that another reader reports as lost
    are not used, and neither are earlier ones of a reader of `REPEATED` that reports the loss.

    Args:
        sources: readings of one subject, the most trusted reader first.
        before: the previous merge of this subject; its order is reused if the metrics are the same.
        parent_loss: result of `reported_loss` for the GPU of an instance, which has no state of its own.
    """
    sources = _without_values_of_lost(sources, parent_loss)
    merged: dict[str, Reading] = {}
    for source in sources:
        merged.update(source.readings)
    if len(merged) != sum([len(source.readings) for source in sources]):
        merged = {}
        for source in sources:
            for name, reading in source.readings.items():
                known = merged.get(name)
                if known is None or (known.value is None and reading.value is not None):
                    merged[name] = reading
        state = _deciding_source(sources)
        if state is not None:
            merged[STATE] = state.readings[STATE]
    if before is not None and merged.keys() == before.keys():
        return {name: merged[name] for name in before}
    return {name: merged[name] for name in sorted(merged.keys() & _ORDER.keys(), key=_ORDER.__getitem__)}


def merge_dimensions(sources: Sequence[SampleReadings], *, parent_loss: Absent | None = None) -> tuple[DimReading, ...]:
    """Return the readings of metrics with dimensions, in the catalogue's order.

    The values of a metric come from one reader, because readers may label dimensions differently: the first reader
    that has any. Absences of readers before it stay for labels that it lacks: one fan that timed out is still listed.
    Repeated measurements of a lost GPU are not used, as in `merge`.

    Args:
        sources: readings of one subject, the most trusted reader first.
        parent_loss: as for `merge`.
    """
    sources = _without_values_of_lost(sources, parent_loss)
    merged: dict[str, Dims] = {}
    owners: dict[str, str] = {}
    for source in sources:
        reader = source.sample.reader
        for metric, found in source.dims.items():
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


def reported_loss(sources: Sequence[SampleReadings]) -> Absent | None:
    """Return why repeated measurements of a GPU are not used; None unless a reader that imports nothing lost it."""
    source = _deciding_source(sources)
    if source is None or _is_imported(source) or source.readings[STATE].value != LOST:
        return None
    return _loss_by(source)


def _loss_by(source: SampleReadings) -> Absent:
    return Absent(Reason.GPU_LOST, f"reported by {source.sample.reader}")


def _without_values_of_lost(sources: Sequence[SampleReadings], parent_loss: Absent | None) -> Sequence[SampleReadings]:
    """Return the sources; repeated measurements of a lost GPU, and of its instances, are absent.

    A reader that reports the loss itself has current measurements, except for those from before: an agent's OTLP has no
    points of absent readings, which would end them.
    """
    repeated = [one for one in sources if one.sample.provenance in REPEATED and one.sample.lane in MEASURING_LANES]
    if not repeated:
        return sources
    why = parent_loss or reported_loss(sources)
    if why is None:
        loss = _deciding_source(sources)
        if loss is None or loss.readings[STATE].value != LOST:
            return sources
        why = _loss_by(loss)
        repeated = [one for one in repeated if _reader(one) == _reader(loss) and one.measured_at < loss.measured_at]
    return [one.replaced(why) if one in repeated else one for one in sources]


def _reader(source: SampleReadings) -> tuple[Provenance, str]:
    return source.sample.provenance, source.sample.reader


def _deciding_source(sources: Sequence[SampleReadings]) -> SampleReadings | None:
    """Return the source whose state of the GPU counts, None if no source has one."""
    states = [(source, reading.value) for source in sources if (reading := source.readings.get(STATE)) is not None]
    found = [
        (source, StateReport(value, source.sample.measured_at, source.interval_seconds, _is_imported(source)))
        for source, value in states
        if isinstance(value, str)
    ]
    place = deciding_state([report for _, report in found])
    return None if place is None else found[place][0]


def _is_imported(source: SampleReadings) -> bool:
    return source.sample.provenance is Provenance.IMPORTED


def first_processes(sources: Iterable[SampleReadings]) -> tuple[ProcessReport, ...] | None:
    """Return the process list of the most trusted reader that has a current one."""
    return next((listed for source in sources if (listed := source.processes) is not None), None)


def process_report(process: Process, reader: str = "", side: str = "", at: dt.datetime | None = None) -> ProcessReport:
    """Return a process as documents show it; `reader`, `side` and `at` go into each of its readings."""
    return ProcessReport(
        pid=process.pid,
        kinds=process.kinds,
        start_time=process.start_time,
        name=process.name,
        readings={
            name: Reading(absent=value.reason, detail=value.detail, reader=reader, side=side, measured_at=at)
            if isinstance(value, Absent)
            else Reading(value=value, reader=reader, side=side, measured_at=at)
            for name, value in process.values.items()
        },
    )


def all_stale(readings: Mapping[str, Reading]) -> dict[str, Reading]:
    """Return the readings with each value replaced by `stale`: a lost machine's last values are not current."""
    return all_absent(readings, Absent(Reason.STALE))


def all_absent(readings: Mapping[str, Reading], why: Absent) -> dict[str, Reading]:
    """Return the readings with each value replaced by an absence."""
    return {
        metric: msgspec.structs.replace(reading, value=None, absent=why.reason, detail=why.detail)
        for metric, reading in readings.items()
    }


class DeviceSamples(NamedTuple):
    """A device, and the samples about it under all of its keys."""

    view: View
    samples: Sequence[StoredSample]

    @property
    def keys(self) -> frozenset[str]:
        """View keys of the samples."""
        return frozenset(one.sample.view.key for one in self.samples if one.sample.view is not None)


def devices(
    cluster: str, machine: str, samples: Sequence[StoredSample], freshness: Freshness
) -> tuple[AnswerDevice, ...]:
    """Return the devices of a machine, in the order of their PCI addresses.

    A MIG device or vGPU instance that a newer pass over its GPU did not list is left out, as are devices that
    `hidden_devices` finds to be another name of a listed one. The key of a GPU is that of `slot_keys`.
    """
    present = device_samples(samples)
    sources = {key: stored_readings(unit.samples, freshness) for key, unit in present.items()}
    every = {
        key: _device(cluster, machine, unit.view, sources[key], reported_loss(sources.get(unit.view.parent or "", ())))
        for key, unit in present.items()
    }
    hidden = hidden_devices(every)
    built = [device for key, device in every.items() if key not in hidden]
    return tuple(sorted(built, key=lambda device: (device.pci_address or "~", device.kind, device.id)))


def device_views(samples: Sequence[StoredSample]) -> dict[str, View]:
    """Return the views of the devices that `devices` lists, by key, and of those that `hidden_devices` hides."""
    return {key: unit.view for key, unit in device_samples(samples).items()}


def has_readings(stored: StoredSample) -> bool:
    """Return whether a sample has a reading other than `no_data`, as `KeyReport` has it."""
    values = (*stored.sample.values.values(), *(dim.value for dim in stored.sample.dims))
    return any(not isinstance(value, Absent) or value.reason is not Reason.NO_DATA for value in values)


def device_samples(samples: Sequence[StoredSample]) -> dict[str, DeviceSamples]:
    """Return the samples of the devices of `device_views`, by key."""
    by_key = _by_view(samples)
    gone = _gone(by_key)
    units = {key: DeviceSamples(newest_view(of_view), of_view) for key, of_view in by_key.items() if key not in gone}
    keys: dict[str, str] = {}
    for shared in shared_slots({key: unit.view for key, unit in units.items()}):
        unit = unit_in_slot([one for key in shared for one in units.pop(key).samples])
        units[unit.view.key] = unit
        keys |= dict.fromkeys(unit.keys, unit.view.key)
    return {key: unit._replace(view=with_parent_key(unit.view, keys)) for key, unit in units.items()}


def known_views(samples: Sequence[StoredSample]) -> dict[str, View]:
    """Return every view among the samples by key, including earlier keys of a device."""
    return {key: newest_view(of_view) for key, of_view in _by_view(samples).items()}


def present_keys(samples: Sequence[StoredSample]) -> frozenset[str]:
    """Return the keys of the views that the newest passes listed."""
    by_key = _by_view(samples)
    return frozenset(by_key) - _gone(by_key)


def _gone(by_key: Mapping[str, Sequence[StoredSample]]) -> frozenset[str]:
    """Return the keys of instances that ended, judged by both clocks: one pass may travel in two batches."""
    parents = {key: newest_view(of_view).parent for key, of_view in by_key.items()}
    cut = {key: parent for key, parent in parents.items() if parent is not None and parent in by_key}
    return frozenset(
        key
        for key, parent in cut.items()
        if is_gone(_received(by_key[key]), _received(by_key[parent]))
        and is_gone(_measured(by_key[key]), _measured(by_key[parent]))
    )


def _received(samples: Sequence[StoredSample]) -> dict[tuple[str, str], int]:
    return {(one.sample.reader, one.sample.lane): one.received_at for one in samples}


def _measured(samples: Sequence[StoredSample]) -> dict[tuple[str, str], int]:
    return {(one.sample.reader, one.sample.lane): one.sample.measured_at for one in samples}


def _by_view(samples: Sequence[StoredSample]) -> dict[str, list[StoredSample]]:
    by_key: dict[str, list[StoredSample]] = {}
    for stored in samples:
        if stored.sample.view is not None:
            by_key.setdefault(stored.sample.view.key, []).append(stored)
    return by_key


def newest_view(samples: Sequence[StoredSample]) -> View:
    """Return the view of the newest sample; fields that it lacks are filled from older samples."""
    ordered = sorted(samples, key=lambda stored: (stored.received_at, stored.sample.measured_at))
    merged: View | None = None
    for stored in ordered:
        view = stored.sample.view
        assert view is not None
        if merged is not None:
            view = msgspec.structs.replace(
                view,
                pci_address=view.pci_address or merged.pci_address,
                parent=view.parent or merged.parent,
                uuid=view.uuid or merged.uuid,
                index=merged.index if view.index is None else view.index,
            )
        merged = view
    assert merged is not None
    return merged


def shared_slots(views: Mapping[str, View]) -> list[list[str]]:
    """Return the view keys of the GPUs of a machine that share a PCI address, by address."""
    slots: dict[str, list[str]] = {}
    for key, view in views.items():
        if view.kind is ViewKind.GPU and view.pci_address:
            slots.setdefault(view.pci_address, []).append(key)
    return [keys for keys in slots.values() if len(keys) > 1]


def unit_in_slot(samples: Sequence[StoredSample]) -> DeviceSamples:
    """Return the GPU that is in a slot now, by the rule of `slot_keys`.

    A GPU that was lost before the agent's start has no UUID for the reader that reports the loss, and can have one for
    others. The samples under both keys are about one device.

    Args:
        samples: newest samples under all keys of the slot; `received_at` by the clock of the caller.
    """
    reports: dict[tuple[str, str], KeyReport] = {}
    for stored in samples:
        view, reader = stored.sample.view, stored.sample.reader
        assert view is not None
        is_listing = view.side is Side.PCI_ONLY
        order = stored.sample.measured_at, has_readings(stored), stored.received_at
        report = KeyReport(view.key, view.uuid is not None, reader, is_listing, *order)
        reports[view.key, reader] = max(report, reports.get((view.key, reader), report))
    counted = slot_keys(reports.values()).reports
    kept = [one for one in samples if one.sample.view and (one.sample.view.key, one.sample.reader) in counted]
    return DeviceSamples(newest_view(kept), kept)


def with_parent_key(view: View, keys: Mapping[str, str]) -> View:
    """Return the view of an instance with the present key of its GPU; `keys` are keys of GPUs to the present ones."""
    parent = keys.get(view.parent or "")
    return view if parent is None else msgspec.structs.replace(view, parent=parent)


def _device(
    cluster: str, machine: str, view: View, sources: Sequence[SampleReadings], parent_loss: Absent | None
) -> AnswerDevice:
    readings = merge(sources, parent_loss=parent_loss)
    return AnswerDevice(
        id=f"{cluster}/{machine}/{view.key}",
        machine=machine,
        kind=view.kind,
        side=view.side,
        uuid=view.uuid,
        pci_address=view.pci_address,
        instance=None if view.uuid else view.instance,  # a host's number of a vGPU is not for its tenant
        parent=view.parent,
        name=device_name(readings),
        source=sources[0].sample.provenance,
        readings=readings,
        dimensions=merge_dimensions(sources, parent_loss=parent_loss),
    )


def _put(known: Dims, labels: tuple[str, ...], reading: DimReading) -> None:
    """Add a reading where there is none, or only an absence."""
    there = known.get(labels)
    if there is None or (there.value is None and reading.value is not None):
        known[labels] = reading


def _any_value(dims: Dims) -> bool:
    return any(reading.value is not None for reading in dims.values())
