"""Snapshot of a machine from the answers of a hub, for `gpufleet record --hub`."""

import datetime as dt
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpufleet import __version__
from gpufleet.cli.fetch import Access, get, get_pages
from gpufleet.cli.options import CommandError
from gpufleet.model.aggregate import aggregate
from gpufleet.model.api.answer import EventsAnswer, GpuPage, GpuRecord, MachineRecord, ProcessesAnswer
from gpufleet.model.catalogue import CATALOGUE, CATALOGUE_VERSION
from gpufleet.model.event import EventReport
from gpufleet.model.reading import DimReading, Reading
from gpufleet.model.snapshot import SNAPSHOT_SCHEMA, Device, Host, ProcessReport, Snapshot, Source
from gpufleet.model.view import ViewKind

T = TypeVar("T")

EVENTS = 100
"""Number of recent events in a snapshot."""


def fetch_machine_snapshot(hub: str, machine: str, access: Access) -> Snapshot:
    """Return the devices of a machine as a hub has them: with holders, processes and events of the last day.

    A hub's API has no readings of the machine itself, and no status of its readers.

    Args:
        hub: base URL.
        machine: id or name of the machine.
        access: to the hub.

    Raises:
        CommandError: if the hub does not return the answers.
    """
    path = f"/v1/machines/{quote(machine, safe='')}"
    record = _decode(hub, get(hub, path, access), MachineRecord)
    query = {"machine": record.id}
    gpus = _decode(hub, get_pages(hub, "/v1/gpus", query, access), GpuPage).items
    tables = _decode(hub, get(hub, f"{path}/processes", access), ProcessesAnswer).devices
    events = _decode(hub, get(hub, f"/v1/events?machine={quote(record.id)}&limit={EVENTS}", access), EventsAnswer)
    processes = {one.device: one.processes for one in tables if not one.stale}
    devices = tuple(_device(one, processes) for one in gpus)
    return Snapshot(
        schema=SNAPSHOT_SCHEMA,
        catalogue=CATALOGUE_VERSION,
        version=__version__,
        node=record.machine,
        measured_at=max((one.measured_at for one in gpus), default=record.last_seen),
        devices=devices,
        host=Host(readings={}),
        guests=(),
        readers=(),
        capabilities={},
        aggregate=aggregate([one.readings for one in devices if one.kind is ViewKind.GPU]),
        events=tuple(
            EventReport(at=one.at, kind=one.kind, code=one.code, device=one.device, attributes=one.attributes)
            for one in events.events
        ),
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
