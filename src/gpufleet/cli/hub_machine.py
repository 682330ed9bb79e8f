"""Snapshots of machines from the answers of a hub, for `gpufleet record --hub`."""

import datetime as dt
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpufleet import __version__
from gpufleet.cli.fetch import Access, get, get_pages
from gpufleet.cli.options import CommandError
from gpufleet.fleet.devices import hidden_devices
from gpufleet.model.aggregate import aggregate
from gpufleet.model.api.answer import (
    EventRecord,
    EventsAnswer,
    GpuPage,
    GpuRecord,
    MachinePage,
    MachineRecord,
    ProcessesAnswer,
)
from gpufleet.model.catalogue import CATALOGUE, CATALOGUE_VERSION
from gpufleet.model.event import EventReport
from gpufleet.model.reading import DimReading, Reading
from gpufleet.model.snapshot import (
    HUB_READER,
    SNAPSHOT_SCHEMA,
    Device,
    Host,
    ProcessReport,
    ReaderReport,
    Snapshot,
    Source,
)
from gpufleet.model.status import ReaderState
from gpufleet.model.view import ViewKind
from gpufleet.web.client import with_query

T = TypeVar("T")

EVENTS = 100
"""Number of recent events in a snapshot."""

CLUSTER_EVENTS = 1000
"""Number of recent events of all machines of a cluster."""

PAGE_DEVICES = 200
"""Number of devices per page of a cluster."""


def fetch_machine_snapshot(hub: str, machine: str, access: Access, cluster: str | None = None) -> Snapshot:
    """Return the devices of a machine as a hub has them: with holders, processes and events of the last day.

    A hub's list has no readings of the machine itself. The status of its reader `hub` has failed if the machine is
    neither live nor late.

    Args:
        hub: base URL.
        machine: id or name of the machine.
        access: to the hub.
        cluster: cluster of the machine, or None for any.

    Raises:
        CommandError: if the hub does not return the answers, or the machine is in another cluster.
    """
    record = _decode(hub, get(hub, f"/v1/machines/{quote(machine, safe='')}", access), MachineRecord)
    if cluster is not None and record.cluster != cluster:
        raise CommandError(f"machine {machine} is in cluster {record.cluster}, not in {cluster}")
    gpus = _decode(hub, get_pages(hub, "/v1/gpus", {"machine": record.id}, access), GpuPage).items
    events = _events(hub, {"machine": record.id, "limit": str(EVENTS)}, access)
    return _snapshot(hub, record, gpus, events, access)


def fetch_cluster_snapshots(hub: str, cluster: str, access: Access, most: int) -> Iterator[Snapshot]:
    """Yield a snapshot of each machine of a cluster that has devices, as `fetch_machine_snapshot`.

    The processes take a request per machine. Devices are requested in pages, so that one page is in memory.

    Args:
        hub: base URL.
        cluster: id of the cluster.
        access: to the hub.
        most: maximum number of machines.

    Raises:
        CommandError: if the hub does not return the answers, or the cluster has more machines.
    """
    pages = get_pages(hub, "/v1/machines", {"cluster": cluster}, access, most + 1)
    records = {one.id: one for one in _decode(hub, pages, MachinePage).items}
    if len(records) > most:
        raise CommandError(f"cluster {cluster} has more than {most} machines: select some with --machine")
    events: dict[str, list[EventRecord]] = {}
    for event in _events(hub, {"cluster": cluster, "limit": str(CLUSTER_EVENTS)}, access):
        events.setdefault(event.machine, []).append(event)
    for page in _gpu_pages(hub, cluster, access):
        for machine, gpus in groupby(page, key=lambda one: one.device.machine):
            if machine in records:  # else it is newer than the list of machines
                recent = events.get(machine, [])[:EVENTS]
                yield _snapshot(hub, records[machine], tuple(gpus), recent, access)


def _gpu_pages(hub: str, cluster: str, access: Access) -> Iterator[tuple[GpuRecord, ...]]:
    """Yield the pages of the devices of a cluster. All devices of a machine are on one page."""
    cursor: str | None = None
    while True:
        query = {"cluster": cluster, "limit": str(PAGE_DEVICES), "cursor": cursor}
        page = _decode(hub, get(hub, with_query("/v1/gpus", query), access), GpuPage)
        yield page.items
        if page.next is None or page.next == cursor:
            return
        cursor = page.next


def _events(hub: str, query: dict[str, str], access: Access) -> tuple[EventRecord, ...]:
    return _decode(hub, get(hub, with_query("/v1/events", query), access), EventsAnswer).events


def _snapshot(
    hub: str, record: MachineRecord, gpus: tuple[GpuRecord, ...], events: Iterable[EventRecord], access: Access
) -> Snapshot:
    """Return the snapshot of a machine; its processes are requested."""
    answer = get(hub, f"/v1/machines/{quote(record.id, safe='')}/processes", access)
    processes = {one.device: one.processes for one in _decode(hub, answer, ProcessesAnswer).devices if not one.stale}
    found = {device.key: device for device in (_device(one, processes) for one in gpus)}
    hidden = hidden_devices(found)
    devices = tuple(device for key, device in found.items() if key not in hidden)
    return Snapshot(
        schema=SNAPSHOT_SCHEMA,
        catalogue=CATALOGUE_VERSION,
        version=__version__,
        node=record.machine,
        measured_at=max((one.measured_at for one in gpus), default=record.last_seen),
        devices=devices,
        host=Host(readings={}),
        guests=(),
        readers=(hub_status(record),),
        capabilities={},
        aggregate=aggregate([one.readings for one in devices if one.kind is ViewKind.GPU]),
        events=tuple(
            EventReport(at=one.at, kind=one.kind, code=one.code, device=one.device, attributes=one.attributes)
            for one in events
        ),
    )


def hub_status(record: MachineRecord) -> ReaderReport:
    """Return whether the hub has current readings of a machine. One of unknown state has none."""
    current = record.liveness is not None and record.liveness.is_current
    state = "unknown" if record.liveness is None else record.liveness.state
    return ReaderReport(
        reader=HUB_READER,
        lane="",
        state=ReaderState.OK if current else ReaderState.FAILED,
        last_success=record.last_seen,
        last_error="" if current else f"{state}, received {record.age_seconds:.0f} s ago",
    )


def _decode(hub: str, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a hub of this version: {error}") from error


def _device(record: GpuRecord, processes: dict[str, tuple[ProcessReport, ...]]) -> Device:
    device = record.device
    key = device.id.split("/", 2)[-1]
    readings = {name: _without_receipt(one) for name, one in device.readings.items()}
    found = processes.get(key)
    return Device(
        key=key,
        kind=device.kind,
        side=device.side,
        uuid=device.uuid,
        pci_address=device.pci_address,
        instance=device.instance,
        parent=device.parent,
        index=record.index,
        name=device.name,
        readings=readings,
        dimensions=tuple(_without_receipt(one) for one in device.dimensions),
        processes=found if found is None else tuple(map(_process, found)),
        holders=record.holders,
        sources=_sources(record, [*readings.items(), *((one.metric, one) for one in device.dimensions)]),
    )


R = TypeVar("R", Reading, DimReading)


def _without_receipt(reading: R) -> R:
    """Return the reading without what only a hub's answers have."""
    if isinstance(reading, DimReading):
        return reading
    return msgspec.structs.replace(reading, received_at=None, age_seconds=None, last_known=None)


def _process(report: ProcessReport) -> ProcessReport:
    readings = {name: _without_receipt(one) for name, one in report.readings.items()}
    return msgspec.structs.replace(report, readings=readings)


def _sources(record: GpuRecord, readings: Iterable[tuple[str, Reading | DimReading]]) -> tuple[Source, ...]:
    newest: dict[tuple[str, str], dt.datetime] = {}
    for metric, one in readings:
        if metric in CATALOGUE and one.reader and one.measured_at is not None:
            key = one.reader, CATALOGUE[metric].lane.value
            newest[key] = max(one.measured_at, newest.get(key, one.measured_at))
    return tuple(
        Source(reader=reader, lane=lane, provenance=record.device.source, measured_at=at)
        for (reader, lane), at in sorted(newest.items())
    )
