"""The snapshot document: the state of an agent, merged by reader precedence. Pure.

Most samples stay the newest of their lane from round to round. The readings built from a sample are kept with it, so a
round costs what it brings, and a caller sees by identity which parts of two documents are equal.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpufleet import __version__
from gpufleet.agent.collect.pci import NVIDIA, PCI_ONLY_METRICS, pci_only
from gpufleet.agent.collect.state import EVENTS_READER, AgentState, LaneSample
from gpufleet.fleet.devices import device_name, hidden_devices
from gpufleet.fleet.readings import (
    SampleReadings,
    first_processes,
    merge,
    merge_dimensions,
    reported_loss,
    shared_slots,
    unit_in_slot,
    with_parent_key,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import aggregate
from gpufleet.model.catalogue import CATALOGUE_VERSION, Lane
from gpufleet.model.event import event_report
from gpufleet.model.holdings import DeviceHolders
from gpufleet.model.machine import PCI_READER
from gpufleet.model.reading import DimReading, Provenance, Reading, precedence
from gpufleet.model.snapshot import SNAPSHOT_SCHEMA, Device, Host, ReaderReport, Snapshot, Source
from gpufleet.model.status import ReaderStatus, lane_interval
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.runtime import run_to_end

_MACHINE = ""
"""Key of the machine itself among the keys of views."""

ReaderLane = tuple[str, Lane]
"""A reader and its lane."""


def assemble(state: AgentState, *, now: float, now_ns: int, capabilities: Mapping[str, str]) -> Snapshot:
    """Build one document without a cache; arguments as for `Assembler.steps`."""
    return run_to_end(Assembler().steps(state, now=now, now_ns=now_ns, capabilities=capabilities))


def current_readings(key: str, state: AgentState, now: float) -> dict[str, Reading] | None:
    """Return the merged readings of the device that has a view key, None if no present device has it.

    `now` is in monotonic seconds.
    """
    for _, lanes in _joined(state.views()).values():
        if any(one.sample.view is not None and one.sample.view.key == key for one in lanes.values()):
            ordered = sorted(lanes, key=lambda source: precedence(lanes[source].sample))
            return merge([_sample_readings(source, lanes[source], state, now, None) for source in ordered])
    return None


class _Assembled(NamedTuple):
    """The parts of a document about one subject, and the readings that they were built from."""

    sample_readings: dict[ReaderLane, SampleReadings]
    readings: dict[str, Reading]
    dimensions: tuple[DimReading, ...]
    sources: tuple[Source, ...]
    device: Device | None
    loss: Absent | None = None
    parent_loss: Absent | None = None


class Assembler:
    """Builds documents in turn; parts that have not changed are the same objects in the next document."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._assembled: dict[str, _Assembled] = {}

    def steps(
        self, state: AgentState, *, now: float, now_ns: int, capabilities: Mapping[str, str]
    ) -> Generator[None, None, Snapshot]:
        """Build the document in small steps; passes that end meanwhile are not part of it.

        Args:
            state: the agent's state.
            now: monotonic seconds; staleness is judged by it.
            now_ns: nanoseconds since 1970; the document's time if nothing has been measured yet.
            capabilities: capability to `available`, or to the reason why it is not.
        """
        machine = dict(state.machine_samples())
        subjects = _joined({key: lanes for key, lanes in state.views().items() if not _superseded(lanes, state, now)})
        newest = max(_measured_instants([state.machine_samples(), *state.views().values()]), default=now_ns)
        pci = _pci_devices(state, [view for view, _ in subjects.values()], now, now_ns)
        inventory, node = state.inventory, state.machine
        readers = tuple([_report(state.judged(status)) for status in state.statuses.values()])
        events = tuple([event_report(event) for event in reversed(state.events)])
        capabilities = {**_reader_capabilities(state), **capabilities}
        assembled: dict[str, _Assembled] = {}
        devices: list[Device] = []
        for key, (view, lanes) in sorted(subjects.items(), key=lambda one: one[1].view.parent is not None):
            yield
            loss = None if view.parent is None else assembled.get(view.parent, _NOTHING).loss
            assembled[key] = subject = self._assemble(key, view, lanes, state, now, loss)
            assert subject.device is not None
            devices.append(subject.device)
        yield
        assembled[_MACHINE] = host = self._assemble(_MACHINE, None, machine, state, now, None)
        self._assembled = assembled
        by_key = {device.key: device for device in (*devices, *pci)}
        hidden = hidden_devices(by_key)
        devices = [device for key, device in by_key.items() if key not in hidden]
        devices.sort(key=lambda device: _display_order(device, by_key.get(device.parent or "")))
        return Snapshot(
            schema=SNAPSHOT_SCHEMA,
            catalogue=CATALOGUE_VERSION,
            version=__version__,
            node=node,
            measured_at=to_datetime(newest),
            devices=tuple(devices),
            host=Host(
                readings=host.readings,
                dimensions=host.dimensions,
                sources=host.sources,
                pci=inventory.functions if inventory else None,
            ),
            guests=(),
            readers=readers,
            events=events,
            capabilities=capabilities,
            aggregate=aggregate(
                [device.readings for device in devices if device.kind is ViewKind.GPU], _driver_count(host.readings)
            ),
        )

    def _assemble(
        self,
        key: str,
        view: View | None,
        lanes: Mapping[ReaderLane, LaneSample],
        state: AgentState,
        now: float,
        parent_loss: Absent | None,
    ) -> _Assembled:
        before = self._assembled.get(key, _NOTHING)
        by_source = {
            source: _sample_readings(source, lanes[source], state, now, before.sample_readings.get(source))
            for source in sorted(lanes, key=lambda source: precedence(lanes[source].sample))
        }
        holders = state.holders.get(key)
        is_same = before.parent_loss == parent_loss and _same(by_source, before.sample_readings)
        if before is not _NOTHING and is_same:
            if before.device is None or view is None:
                return before
            if before.device.holders is holders and before.device.parent == view.parent:
                return before
            return before._replace(device=msgspec.structs.replace(before.device, holders=holders, parent=view.parent))
        ordered = list(by_source.values())
        readings = merge(ordered, before.readings, parent_loss=parent_loss)
        dimensions = merge_dimensions(ordered, parent_loss=parent_loss)
        sources = tuple([_source(one) for one in ordered])
        device = None
        if view is not None:
            device = _device(key, view, readings, dimensions, ordered, sources, holders)
        loss = None if view is None else reported_loss(ordered)
        return _Assembled(by_source, readings, dimensions, sources, device, loss, parent_loss)


class _JoinedDevice(NamedTuple):
    """A device, and its newest samples by reader and lane."""

    view: View
    lanes: Mapping[ReaderLane, LaneSample]


_NOTHING = _Assembled({}, {}, (), (), None)


def _driver_count(readings: Mapping[str, Reading]) -> int:
    """Return the driver's own count of GPUs, 0 if unknown. It includes GPUs that no reader can identify."""
    found = readings.get("nvidia_devices")
    return int(found.value) if found is not None and isinstance(found.value, int) else 0


def _sample_readings(
    source: ReaderLane, newest: LaneSample, state: AgentState, now: float, before: SampleReadings | None
) -> SampleReadings:
    """Return the readings of a sample: `before` if sample and verdict are the same."""
    stale = None
    if state.is_stale(*source, newest.ended, now):
        stale = Absent(Reason.STALE, state.statuses[source].last_error)
    if before is not None and before.sample is newest.sample and before.stale == stale:
        return before
    interval = state.statuses[source].interval_seconds
    return SampleReadings(newest.sample, stale, interval_seconds=interval, before=before)


def _source(readings: SampleReadings) -> Source:
    sample = readings.sample
    return Source(
        reader=sample.reader, lane=sample.lane, provenance=sample.provenance, measured_at=readings.measured_at
    )


def _same(readings: Mapping[ReaderLane, SampleReadings], before: Mapping[ReaderLane, SampleReadings]) -> bool:
    return len(readings) == len(before) and all(before.get(source) is one for source, one in readings.items())


def _device(
    key: str,
    view: View,
    readings: dict[str, Reading],
    dimensions: tuple[DimReading, ...],
    ordered: Sequence[SampleReadings],
    sources: tuple[Source, ...],
    holders: DeviceHolders | None,
) -> Device:
    return Device(
        key=key,
        kind=view.kind,
        side=view.side,
        uuid=view.uuid,
        pci_address=view.pci_address,
        instance=view.instance,
        parent=view.parent,
        index=view.index,
        name=device_name(readings),
        readings=readings,
        dimensions=dimensions,
        processes=first_processes(ordered),
        holders=holders,
        sources=sources,
    )


def _pci_devices(state: AgentState, views: Sequence[View], now: float, now_ns: int) -> list[Device]:
    """Return the GPUs that only the bus shows, beside these."""
    gpus = [view for view in views if view.kind is ViewKind.GPU]
    unplaced = sum(view.uuid is not None and view.pci_address is None for view in gpus)
    shown = {view.pci_address for view in views if view.pci_address}
    at = state.inventory.at if state.inventory else now_ns
    only_pci = pci_only(state, shown, now, unplaced=unplaced)
    return [_pci_device(view, absent, at, state.holders.get(view.key)) for view, absent in only_pci]


def _joined(views: Mapping[str, Mapping[ReaderLane, LaneSample]]) -> dict[str, _JoinedDevice]:
    """Return the devices, with one key for each GPU: see `unit_in_slot`."""
    subjects = {key: _JoinedDevice(_view(lanes), dict(lanes)) for key, lanes in views.items()}
    shared = shared_slots({key: subject.view for key, subject in subjects.items()})
    if not shared:
        return subjects
    present: dict[str, str] = {}
    for keys in shared:
        of_slot = [one for key in keys for one in subjects.pop(key).lanes.values()]
        by_pass = [_by_monotonic_clock(one) for one in of_slot]
        unit = unit_in_slot(by_pass)
        kept = {id(stored) for stored in unit.samples}
        lanes = {
            (one.sample.reader, one.sample.lane): one
            for one, stored in zip(of_slot, by_pass, strict=True)
            if id(stored) in kept
        }
        subjects[unit.view.key] = _JoinedDevice(unit.view, lanes)
        present |= dict.fromkeys(unit.keys, unit.view.key)
    return {key: _JoinedDevice(with_parent_key(view, present), lanes) for key, (view, lanes) in subjects.items()}


def _by_monotonic_clock(newest: LaneSample) -> StoredSample:
    """Return a sample with the end of its pass as its times: the system clock can be set between two passes."""
    at = int(newest.ended * NANOS)
    return StoredSample(sample=msgspec.structs.replace(newest.sample, measured_at=at), received_at=at)


def _view(lanes: Mapping[ReaderLane, LaneSample]) -> View:
    """Return the view as the newest sample of its most trusted reader describes it, with an address of any reader."""
    best = min(lanes.values(), key=lambda k: (precedence(k.sample), -k.sample.measured_at))
    view = best.sample.view
    assert view is not None
    if view.pci_address is None and view.kind is ViewKind.GPU:
        addresses = (one.sample.view.pci_address for one in lanes.values() if one.sample.view is not None)
        view = msgspec.structs.replace(view, pci_address=next(filter(None, addresses), None))
    return view


def _superseded(lanes: Mapping[ReaderLane, LaneSample], state: AgentState, now: float) -> bool:
    """Return whether the PCI bus proves that a device without new samples was rebound, unbound or removed.

    The device's fastest lane decides that it has no new samples: what slower lanes read may not be stale yet. It was
    removed if an earlier PCI listing had it and the newest has not; a device that was never listed proves nothing.
    """
    if state.inventory is None:
        return False
    lanes = {source: one for source, one in lanes.items() if source[0] != EVENTS_READER} or lanes
    address = _view(lanes).pci_address
    if address is None:
        return False
    fastest = min(lanes, key=lambda source: lane_interval(state.statuses[source]))
    if not state.is_stale(*fastest, lanes[fastest].ended, now):
        return False
    drivers = {function.address: function.driver for function in state.inventory.functions}
    rebound = address in drivers and drivers[address] != NVIDIA
    return (rebound or state.left_the_bus(address)) and state.inventory.ended > max(one.ended for one in lanes.values())


def _pci_device(view: View, absent: Absent, at: int, holders: DeviceHolders | None) -> Device:
    reading = Reading(
        absent=absent.reason, detail=absent.detail, reader=PCI_READER, side=Side.PCI_ONLY, measured_at=to_datetime(at)
    )
    return Device(
        key=view.key,
        kind=view.kind,
        side=view.side,
        uuid=None,
        pci_address=view.pci_address,
        readings=dict.fromkeys(PCI_ONLY_METRICS, reading),
        holders=holders,
        sources=(
            Source(reader=PCI_READER, lane=Lane.SLOW, provenance=Provenance.UNAVAILABLE, measured_at=to_datetime(at)),
        ),
    )


def _display_order(device: Device, parent: Device | None) -> tuple[object, ...]:
    """Sort key: GPUs by the driver's number, and each one's instances after it by theirs."""
    top = parent or device
    numbers = [int(number) for number in (device.instance or "").split("/") if number.isdecimal()]
    return top.index is None, top.index or 0, top.pci_address or "", top.key, device is not top, numbers, device.key


def _measured_instants(subjects: Iterable[Mapping[ReaderLane, LaneSample]]) -> Iterable[int]:
    return [one.sample.measured_at for lanes in subjects for one in lanes.values()]


def _report(status: ReaderStatus) -> ReaderReport:
    return ReaderReport(
        reader=status.reader,
        lane=status.lane,
        state=status.state,
        interval_seconds=status.interval_seconds,
        last_attempt=None if status.last_attempt is None else to_datetime(status.last_attempt),
        last_success=None if status.last_success is None else to_datetime(status.last_success),
        duration_seconds=status.duration_seconds,
        failures=status.failures,
        error_class=status.error_class,
        last_error=status.last_error,
    )


def _reader_capabilities(state: AgentState) -> dict[str, str]:
    capabilities: dict[str, str] = {}
    for reader in dict.fromkeys(reader for reader, _ in state.statuses):
        why_not = state.why_not(reader)
        capabilities[reader] = "available" if why_not is None else f"{why_not.reason}: {why_not.detail}"
    return capabilities
