"""Batches for a hub from the frames of a recording, with the times of measurement of the recording. Pure."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.codecs.batch import encode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.event import Event, EventReport
from gpufleet.model.holdings import DeviceState, Holding
from gpufleet.model.machine import Machine
from gpufleet.model.process import Process
from gpufleet.model.reading import DimReading, DimValue, Provenance, Reading, Sample, Value, value_of
from gpufleet.model.snapshot import Device, Guest, Host, ProcessReport, ReaderReport, Snapshot, Source
from gpufleet.model.status import ReaderStatus
from gpufleet.model.time import NANOS, to_ns
from gpufleet.model.view import Scope, View, view_of_key
from gpufleet.model.wire.batch import Batch, MachineReport

MAX_MACHINES = 10_000
"""Maximum number of machines whose newest reports are in memory."""

HOLDER_SECONDS = 300.0
"""Interval at which unchanged holders are repeated."""

_LANES = frozenset(lane.value for lane in Lane)

_Key = tuple[str, Lane, int]
"""Reader, lane and time of measurement of a sample."""


class RecordedBatches:
    """Batches of one recording, a batch per frame.

    The same recording gives the same bytes each time: a hub recognises batches that it has already. A sample that
    several frames repeat is sent once. Stale readings, and those of the whole GPU in a part of it (`scope`), are not
    sent: they were not measured on this subject at that time.

    Attributes:
        sender: name of the sender.
    """

    def __init__(self, cluster: str, recording: bytes) -> None:
        """Take the cluster of the machines, and the id of the recording: 16 bytes."""
        self._cluster = cluster
        self._epoch = recording.hex()
        self.sender = f"recording-{self._epoch[:12]}"
        self._seq = 0
        self._machines: OrderedDict[tuple[str, str | None, str | None], _RecordedMachine] = OrderedDict()

    def batch(self, snapshot: Snapshot, at: int) -> bytes:
        """Return the encoded batch of the next frame; `at` is its time in nanoseconds since 1970."""
        self._seq += 1
        machine = self._machine(snapshot.node)
        holdings, states = machine.due_holders(snapshot.devices, at)
        report = MachineReport(
            machine=snapshot.node,
            samples=machine.new_samples("", snapshot.devices, snapshot.host),
            events=machine.new_events(snapshot),
            readers=_statuses(snapshot.readers),
            holdings=holdings,
            inventory=snapshot.host.pci,
            device_holders=states,
        )
        guests = [machine.guest(one, snapshot.node) for one in snapshot.guests if one.devices or one.host.readings]
        return encode(
            Batch(
                cluster=self._cluster,
                sender=self.sender,
                epoch=self._epoch,
                seq=self._seq,
                sent_at=at,
                reports=(report, *guests),
            )
        )

    def _machine(self, node: Machine) -> "_RecordedMachine":
        """Return what was sent of a machine; beyond the limit, that of the machine used least recently is dropped."""
        key = node.name, node.machine_id, node.system_uuid
        machine = self._machines.setdefault(key, _RecordedMachine())
        self._machines.move_to_end(key)
        if len(self._machines) > MAX_MACHINES:
            self._machines.popitem(last=False)
        return machine


class _RecordedMachine:
    """Newest sent samples, events and holders of a machine."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str, str, Lane], int] = {}  # machine, view, reader and lane to its newest sample
        self._events: set[bytes] = set()  # of the frame before
        self._holders: tuple[bytes, int] = (b"", 0)  # newest reported holders, and their time

    def guest(self, guest: Guest, node: Machine) -> MachineReport:
        machine = msgspec.structs.replace(guest.machine, hypervisor=guest.machine.hypervisor or node.name)
        key = guest.vm_uuid or guest.machine.name
        samples = self.new_samples(key, guest.devices, guest.host)
        return MachineReport(machine=machine, samples=samples, readers=_statuses(guest.readers))

    def new_samples(self, machine: str, devices: Iterable[Device], host: Host) -> tuple[Sample, ...]:
        """Return the samples that are newer than those of earlier frames; `machine` is empty for the node itself."""
        found = [one for device in devices for one in _device_samples(device)]
        found += _samples(None, host.readings, host.dimensions, host.sources)
        new = []
        for one in found:
            key = machine, one.view.key if one.view is not None else "", one.reader, one.lane
            if one.measured_at != self._sent.get(key):
                self._sent[key] = one.measured_at
                new.append(one)
        return tuple(new)

    def new_events(self, snapshot: Snapshot) -> tuple[Event, ...]:
        """Return the events that the frame before does not have. A frame has the most recent events.

        The device of an event can have left the machine before the frame.
        """
        views = {device.key: device.view for device in snapshot.devices}
        reports = {msgspec.msgpack.encode(one): one for one in snapshot.events}
        new = [one for key, one in reports.items() if key not in self._events]
        self._events = set(reports)
        return tuple(event for one in new if (event := _event(one, views)) is not None)

    def due_holders(
        self, devices: Sequence[Device], at: int
    ) -> tuple[tuple[Holding, ...], tuple[DeviceState, ...] | None]:
        """Return holdings and holder states if they have changed, or are due again; otherwise none."""
        held = [(device, device.holders) for device in devices if device.holders is not None]
        states = tuple(DeviceState(view=one.key, state=holders.state, detail=holders.detail) for one, holders in held)
        holdings = tuple(
            msgspec.structs.replace(holding, view=one.key) for one, holders in held for holding in holders.holdings
        )
        content = msgspec.msgpack.encode((holdings, states))
        before, reported_at = self._holders
        if not held or (content == before and 0 <= at - reported_at < HOLDER_SECONDS * NANOS):
            return (), None
        self._holders = content, at
        return holdings, states


def _device_samples(device: Device) -> list[Sample]:
    found = _samples(device.view, device.readings, device.dimensions, device.sources)
    lists = {one for report in device.processes or () for one in _process_sources(report)}
    if len(lists) != 1:  # no process, or none with a reading: the list has no reader and no time
        return found
    ((reader, at),) = lists
    processes = tuple(map(_process, device.processes or ()))
    for place, one in enumerate(found):
        if (one.reader, one.measured_at) == (reader, at):
            found[place] = msgspec.structs.replace(one, processes=processes)
            return found
    return found


def _samples(
    view: View | None, readings: dict[str, Reading], dimensions: Sequence[DimReading], sources: Sequence[Source]
) -> list[Sample]:
    provenances = {(one.reader, one.lane): one.provenance for one in sources}
    values: dict[_Key, dict[str, Value | Absent]] = {}
    dims: dict[_Key, list[DimValue]] = {}
    for name, reading in readings.items():
        key = _key(name, reading)
        if key is not None and not CATALOGUE[name].dims:
            values.setdefault(key, {})[name] = value_of(reading)
    for dim in dimensions:
        key = _key(dim.metric, dim)
        if key is not None and set(dim.labels) == set(CATALOGUE[dim.metric].dims):
            labels = tuple(dim.labels[name] for name in CATALOGUE[dim.metric].dims)
            dims.setdefault(key, []).append(DimValue(dim.metric, labels, value_of(dim)))
    return [
        Sample(
            view=view,
            reader=reader,
            lane=lane,
            measured_at=at,
            values=values.get((reader, lane, at), {}),
            dims=tuple(dims.get((reader, lane, at), ())),
            provenance=provenances.get((reader, lane.value), Provenance.HOST_LOCAL_PROBE),
        )
        for reader, lane, at in sorted({*values, *dims})
    ]


def _key(metric: str, reading: Reading | DimReading) -> _Key | None:
    """Return the sample that a reading is of, or None if it was not measured on its subject."""
    if metric not in CATALOGUE or reading.absent is Reason.STALE or reading.scope is not Scope.OWN:
        return None
    if not reading.reader or reading.measured_at is None or reading.measured_at.tzinfo is None:
        return None
    return reading.reader, CATALOGUE[metric].lane, to_ns(reading.measured_at)


def _process_sources(report: ProcessReport) -> set[tuple[str, int]]:
    readings = report.readings.values()
    return {(one.reader, to_ns(one.measured_at)) for one in readings if one.reader and one.measured_at is not None}


def _process(report: ProcessReport) -> Process:
    values: dict[str, int | float | Absent] = {}
    for name, reading in report.readings.items():
        value = value_of(reading)
        if not isinstance(value, str):
            values[name] = value
    return Process(pid=report.pid, kinds=report.kinds, start_time=report.start_time, values=values, name=report.name)


def _event(report: EventReport, views: dict[str, View]) -> Event | None:
    """Return the event of a report; None if it names no device that a machine can have."""
    view = None if report.device is None else views.get(report.device)
    if report.device is not None and view is None:
        try:
            view = view_of_key(report.device)
        except ValueError:
            return None
    return Event(view=view, kind=report.kind, code=report.code, at=to_ns(report.at), attributes=report.attributes)


def _statuses(reports: Iterable[ReaderReport]) -> tuple[ReaderStatus, ...]:
    return tuple(
        ReaderStatus(
            reader=one.reader,
            lane=Lane(one.lane),
            state=one.state,
            interval_seconds=one.interval_seconds,
            last_attempt=None if one.last_attempt is None else to_ns(one.last_attempt),
            last_success=None if one.last_success is None else to_ns(one.last_success),
            duration_seconds=one.duration_seconds,
            failures=one.failures,
            error_class=one.error_class,
            last_error=one.last_error,
        )
        for one in reports
        if one.lane in _LANES
    )
