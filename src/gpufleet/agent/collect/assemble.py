"""What the agent knows, as the snapshot document. Pure: readers merged by precedence, old readings judged stale."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpufleet import __version__
from gpufleet.agent.collect.pci import NVIDIA, PCI_ONLY_METRICS, pci_only
from gpufleet.agent.collect.readings import ReaderLane, Told, merge, merge_dimensions, processes_of, told
from gpufleet.agent.collect.state import EVENTS_READER, Kept, State
from gpufleet.fleet.devices import Shown, device_name, left_out
from gpufleet.model.absence import Absent
from gpufleet.model.aggregate import aggregate
from gpufleet.model.catalogue import CATALOGUE_VERSION, Lane
from gpufleet.model.event import event_report
from gpufleet.model.machine import PCI_READER
from gpufleet.model.reading import DimReading, Provenance, Reading, precedence
from gpufleet.model.snapshot import SNAPSHOT_SCHEMA, Device, Host, ReaderReport, Snapshot, Source
from gpufleet.model.status import ReaderStatus
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.runtime import at_once

_MACHINE = ""
"""Stands for the machine itself among the keys of views."""


def assemble(state: State, *, now: float, now_ns: int, capabilities: Mapping[str, str]) -> Snapshot:
    """Write the document, once and without memory; as `Assembler.steps`."""
    return at_once(Assembler().steps(state, now=now, now_ns=now_ns, capabilities=capabilities))


class _Made(NamedTuple):
    """What was made of one subject, and of what."""

    tolds: dict[ReaderLane, Told]
    readings: dict[str, Reading]
    dimensions: tuple[DimReading, ...]
    sources: tuple[Source, ...]
    device: Device | None


class Assembler:
    """Writes the document again and again; what has not changed since is the same object in the next one."""

    def __init__(self) -> None:
        """Start without memory."""
        self._made: dict[str, _Made] = {}

    def steps(
        self, state: State, *, now: float, now_ns: int, capabilities: Mapping[str, str]
    ) -> Generator[None, None, Snapshot]:
        """Write the document in small steps; what passes bring meanwhile is not in it.

        Args:
            state: what the agent knows.
            now: by the monotonic clock; staleness is judged by it.
            now_ns: nanoseconds since 1970; the document's time when nothing has been measured yet.
            capabilities: what this agent can do beside reading, to `available` or why not.
        """
        machine = dict(state.machine_samples())
        views = {key: dict(kept) for key, kept in state.views().items() if not _superseded(kept, state, now)}
        newest = max(_measured_instants([state.machine_samples(), *state.views().values()]), default=now_ns)
        pci = _pci_devices(state, [_view(kept) for kept in views.values()], now, now_ns)
        inventory, node = state.inventory, state.machine
        readers = tuple([_report(state.judged(status)) for status in state.statuses.values()])
        events = tuple([event_report(event) for event in reversed(state.events)])
        capabilities = {**_reader_capabilities(state), **capabilities}
        made: dict[str, _Made] = {}
        devices: list[Device] = []
        for key, kept in views.items():
            yield
            made[key] = one = self._make(key, kept, state, now)
            assert one.device is not None
            devices.append(one.device)
        yield
        made[_MACHINE] = host = self._make(_MACHINE, machine, state, now)
        self._made = made
        devices = _without_doubles([*devices, *pci])
        by_key = {device.key: device for device in devices}
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
            aggregate=aggregate([device.readings for device in devices if device.kind is ViewKind.GPU]),
        )

    def _make(self, key: str, kept: Mapping[ReaderLane, Kept], state: State, now: float) -> _Made:
        before = self._made.get(key, _NOTHING)
        tolds = {
            source: told(source, kept[source], state, now, before.tolds.get(source))
            for source in sorted(kept, key=lambda source: precedence(kept[source].sample))
        }
        if before is not _NOTHING and _same(tolds, before.tolds):
            return before
        ordered = list(tolds.values())
        readings, dimensions = merge(ordered, before.readings), merge_dimensions(ordered)
        device = None
        if key != _MACHINE:
            device = _device(key, _view(kept), readings, dimensions, ordered)
        return _Made(tolds, readings, dimensions, tuple([one.source for one in ordered]), device)


_NOTHING = _Made({}, {}, (), (), None)


def _same(tolds: Mapping[ReaderLane, Told], before: Mapping[ReaderLane, Told]) -> bool:
    return len(tolds) == len(before) and all(before.get(source) is one for source, one in tolds.items())


def _device(
    key: str, view: View, readings: dict[str, Reading], dimensions: tuple[DimReading, ...], tolds: Sequence[Told]
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
        processes=processes_of(tolds),
        sources=tuple([one.source for one in tolds]),
    )


def _pci_devices(state: State, views: Sequence[View], now: float, now_ns: int) -> list[Device]:
    """Return the GPUs that only the bus shows, beside these."""
    gpus = [view for view in views if view.kind is ViewKind.GPU]
    unplaced = sum(view.uuid is not None and view.pci_address is None for view in gpus)
    shown = {view.pci_address for view in views if view.pci_address}
    at = state.inventory.at if state.inventory else now_ns
    return [_pci_device(view, absent, at) for view, absent in pci_only(state, shown, now, unplaced=unplaced)]


def _without_doubles(devices: Sequence[Device]) -> list[Device]:
    doubles = left_out(
        Shown.of(device.key, named=bool(device.uuid or device.pci_address), readings=device.readings)
        for device in devices
        if device.kind is ViewKind.GPU
    )
    # A GPU whose MIG devices are known by name has no others: what has none is one of those.
    cut = {device.parent for device in devices if device.kind is ViewKind.MIG and device.uuid is not None}
    unnamed = {
        device.key for device in devices if device.kind is ViewKind.MIG and device.uuid is None and device.parent in cut
    }
    return [device for device in devices if device.key not in doubles and device.key not in unnamed]


def _view(kept: Mapping[ReaderLane, Kept]) -> View:
    """Return the view as its most trusted reader's newest sample words it."""
    best = min(kept.values(), key=lambda k: (precedence(k.sample), -k.sample.measured_at))
    assert best.sample.view is not None
    return best.sample.view


def _superseded(kept: Mapping[ReaderLane, Kept], state: State, now: float) -> bool:
    """Whether a device that has gone silent is known, from the PCI bus, to be another driver's, nobody's or gone.

    Its fastest lane tells that it is silent: what slower ones read before may not be old enough to be stale. It is
    gone if the bus showed it and does not any more; that the bus never showed it proves nothing.
    """
    if state.inventory is None:
        return False
    kept = {source: one for source, one in kept.items() if source[0] != EVENTS_READER} or kept
    address = _view(kept).pci_address
    if address is None:
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
        sources=(
            Source(reader=PCI_READER, lane=Lane.SLOW, provenance=Provenance.UNAVAILABLE, measured_at=to_datetime(at)),
        ),
    )


def _display_order(device: Device, parent: Device | None) -> tuple[object, ...]:
    """Sort key: GPUs by the driver's number, and each one's instances after it by theirs."""
    top = parent or device
    numbers = [int(number) for number in (device.instance or "").split("/") if number.isdecimal()]
    return top.index is None, top.index or 0, top.pci_address or "", top.key, device is not top, numbers, device.key


def _measured_instants(subjects: Iterable[Mapping[ReaderLane, Kept]]) -> Iterable[int]:
    return [one.sample.measured_at for kept in subjects for one in kept.values()]


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
