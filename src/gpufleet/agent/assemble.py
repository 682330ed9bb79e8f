"""What the agent knows, as the snapshot document. Pure: readers merged by precedence, old readings judged stale."""

import datetime as dt
from collections.abc import Iterable, Mapping

from gpufleet import __version__
from gpufleet.agent.pci import NVIDIA, PCI_ONLY_METRICS, pci_only
from gpufleet.agent.state import EVENTS_READER, Kept, State
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import aggregate
from gpufleet.model.catalogue import CATALOGUE, CATALOGUE_VERSION, Lane
from gpufleet.model.doubles import Shown, left_out
from gpufleet.model.event import event_report
from gpufleet.model.instances import device_name
from gpufleet.model.machine import PCI_READER
from gpufleet.model.reading import DimReading, Reading, Sample, precedence
from gpufleet.model.snapshot import SNAPSHOT_SCHEMA, Device, Host, ProcessReport, ReaderReport, Snapshot
from gpufleet.model.status import ReaderStatus
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Side, View, ViewKind

_ORDER = {name: position for position, name in enumerate(CATALOGUE)}

Source = tuple[str, Lane]


def assemble(state: State, *, now: float, now_ns: int, capabilities: Mapping[str, str]) -> Snapshot:
    """Write the document.

    Args:
        state: what the agent knows.
        now: by the monotonic clock; staleness is judged by it.
        now_ns: nanoseconds since 1970; the document's time when nothing has been measured yet.
        capabilities: what this agent can do beside reading, to `available` or why not.
    """
    devices = [
        _device(key, kept, state, now) for key, kept in state.views().items() if not _superseded(kept, state, now)
    ]
    gpus = [device for device in devices if device.kind is ViewKind.GPU]
    unplaced = sum(device.uuid is not None and device.pci_address is None for device in gpus)
    shown = {device.pci_address for device in devices if device.pci_address}
    devices += [
        _pci_device(view, absent, state.inventory.at if state.inventory else now_ns)
        for view, absent in pci_only(state, shown, now, unplaced=unplaced)
    ]
    doubles = left_out(
        Shown.of(device.key, named=bool(device.uuid or device.pci_address), readings=device.readings)
        for device in devices
        if device.kind is ViewKind.GPU
    )
    devices = [device for device in devices if device.key not in doubles]
    by_key = {device.key: device for device in devices}
    devices.sort(key=lambda device: _display_order(device, by_key.get(device.parent or "")))
    machine = state.machine_samples()
    newest = max(_measured_instants(state), default=now_ns)
    return Snapshot(
        schema=SNAPSHOT_SCHEMA,
        catalogue=CATALOGUE_VERSION,
        version=__version__,
        node=state.machine,
        measured_at=to_datetime(newest),
        devices=tuple(devices),
        host=Host(
            readings=_merge(machine, state, now),
            dimensions=_merge_dimensions(machine, state, now),
            pci=state.inventory.functions if state.inventory else None,
        ),
        guests=(),
        readers=tuple(_report(state.judged(status)) for status in state.statuses.values()),
        events=tuple(event_report(event) for event in reversed(state.events)),
        capabilities={**_reader_capabilities(state), **capabilities},
        aggregate=aggregate([device.readings for device in devices if device.kind is ViewKind.GPU]),
    )


def _device(key: str, kept: Mapping[Source, Kept], state: State, now: float) -> Device:
    view = _view(kept)
    readings = _merge(kept, state, now)
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
        dimensions=_merge_dimensions(kept, state, now),
        processes=_processes(kept, state, now),
    )


def _processes(kept: Mapping[Source, Kept], state: State, now: float) -> tuple[ProcessReport, ...] | None:
    """Show the list of the most trusted reader that has a fresh one: processes come and go, an old list is none."""
    for source in sorted(kept, key=lambda source: precedence(kept[source].sample)):
        sample = kept[source].sample
        if sample.processes is None or state.is_stale(*source, kept[source].ended, now):
            continue
        at, side, _ = _stamp(sample, source, kept[source], state, now)
        return tuple(
            [
                ProcessReport(
                    pid=process.pid,
                    kinds=process.kinds,
                    start_time=process.start_time,
                    name=process.name,
                    readings={
                        name: Reading(
                            absent=value.reason, detail=value.detail, reader=sample.reader, side=side, measured_at=at
                        )
                        if isinstance(value, Absent)
                        else Reading(value=value, reader=sample.reader, side=side, measured_at=at)
                        for name, value in process.values.items()
                    },
                )
                for process in sample.processes
            ]
        )
    return None


def _view(kept: Mapping[Source, Kept]) -> View:
    """Return the view as its most trusted reader's newest sample words it."""
    best = min(kept.values(), key=lambda k: (precedence(k.sample), -k.sample.measured_at))
    assert best.sample.view is not None
    return best.sample.view


def _superseded(kept: Mapping[Source, Kept], state: State, now: float) -> bool:
    """Whether a device that has gone silent is known, from the PCI bus, to be another driver's, nobody's or gone.

    Its fastest lane tells that it is silent: what slower ones read before may not be old enough to be stale. It is
    gone if the bus showed it and does not any more; that the bus never showed it proves nothing.
    """
    kept = {source: one for source, one in kept.items() if source[0] != EVENTS_READER} or kept
    address = _view(kept).pci_address
    if state.inventory is None or address is None:
        return False
    fastest = min(kept, key=lambda source: state.statuses[source].interval_seconds)
    if not state.is_stale(*fastest, kept[fastest].ended, now):
        return False
    drivers = {function.address: function.driver for function in state.inventory.functions}
    rebound = address in drivers and drivers[address] != NVIDIA
    return (rebound or state.left_the_bus(address)) and state.inventory.ended > max(one.ended for one in kept.values())


def _pci_device(view: View, absent: Absent, at: int) -> Device:
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
    )


def _merge(kept: Mapping[Source, Kept], state: State, now: float) -> dict[str, Reading]:
    """Take each metric from the most trusted reader that has a value, or else that says why there is none."""
    merged: dict[str, Reading] = {}
    for source in sorted(kept, key=lambda source: precedence(kept[source].sample)):
        sample = kept[source].sample
        at, side, stale = _stamp(sample, source, kept[source], state, now)
        for name, value in sample.values.items():
            known = merged.get(name)
            if known is not None and (known.value is not None or stale is not None or isinstance(value, Absent)):
                continue
            absent = stale or (value if isinstance(value, Absent) else None)
            if absent is None:
                assert not isinstance(value, Absent)
                merged[name] = Reading(value=value, reader=sample.reader, side=side, measured_at=at)
            else:
                merged[name] = Reading(
                    absent=absent.reason, detail=absent.detail, reader=sample.reader, side=side, measured_at=at
                )
    return {name: merged[name] for name in sorted(merged, key=_ORDER.__getitem__)}


def _merge_dimensions(kept: Mapping[Source, Kept], state: State, now: float) -> tuple[DimReading, ...]:
    """Take each metric's values whole from the most trusted reader that has any: readers can word dimensions apart."""
    merged: dict[tuple[str, tuple[str, ...]], DimReading] = {}
    told: dict[str, str] = {}  # metric to the reader whose values stand
    for source in sorted(kept, key=lambda source: precedence(kept[source].sample)):
        sample = kept[source].sample
        if not sample.dims:
            continue
        at, _, stale = _stamp(sample, source, kept[source], state, now)
        for dim in sample.dims:
            known = merged.get((dim.metric, dim.labels))
            absent = stale or (dim.value if isinstance(dim.value, Absent) else None)
            if told.get(dim.metric, sample.reader) != sample.reader:
                continue
            if known is not None and (known.value is not None or absent is not None):
                continue
            if absent is None:
                told[dim.metric] = sample.reader
            labels = dict(zip(CATALOGUE[dim.metric].dims, dim.labels, strict=True))
            if absent is None:
                assert not isinstance(dim.value, Absent)
                reading = DimReading(
                    metric=dim.metric, labels=labels, value=dim.value, reader=sample.reader, measured_at=at
                )
            else:
                reading = DimReading(
                    metric=dim.metric,
                    labels=labels,
                    absent=absent.reason,
                    detail=absent.detail,
                    reader=sample.reader,
                    measured_at=at,
                )
            merged[dim.metric, dim.labels] = reading
    return tuple(merged[key] for key in sorted(merged, key=lambda key: _ORDER[key[0]]))


def _stamp(
    sample: Sample, source: Source, kept: Kept, state: State, now: float
) -> tuple[dt.datetime, str, Absent | None]:
    """Return when it was measured, from which side, and the absence that replaces its values once it is stale."""
    stale = None
    if state.is_stale(*source, kept.ended, now):
        stale = Absent(Reason.STALE, state.statuses[source].last_error)
    return to_datetime(sample.measured_at), sample.view.side if sample.view else "", stale


def _display_order(device: Device, parent: Device | None) -> tuple[object, ...]:
    """Sort key: GPUs by the driver's number, and each one's instances after it by theirs."""
    top = parent or device
    numbers = [int(number) for number in (device.instance or "").split("/") if number.isdecimal()]
    return top.index is None, top.index or 0, top.pci_address or "", top.key, device is not top, numbers, device.key


def _measured_instants(state: State) -> Iterable[int]:
    for kept in (state.machine_samples(), *state.views().values()):
        for one in kept.values():
            yield one.sample.measured_at


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


def _reader_capabilities(state: State) -> dict[str, str]:
    capabilities: dict[str, str] = {}
    for reader in dict.fromkeys(reader for reader, _ in state.statuses):
        why_not = state.why_not(reader)
        capabilities[reader] = "available" if why_not is None else f"{why_not.reason}: {why_not.detail}"
    return capabilities
