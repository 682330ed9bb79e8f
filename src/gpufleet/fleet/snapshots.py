"""Judgement of snapshot documents of other processes, by the rules that readers apply to their own readings. Pure.

A document is hostile input: it can name a GPU `ok` beside readings that prove its loss, and repeat a driver's default
as a serial number.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from gpufleet.fleet.board import drop_board_defaults
from gpufleet.fleet.readings import STATE, StateReport, deciding_state
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.device_state import (
    CORE_READINGS,
    ERROR,
    LOST,
    RESET_REQUIRED,
    UNREADABLE,
    has_state_lane,
    is_failure,
    state_of,
    state_with_instances,
)
from gpufleet.model.reading import DimReading, DimValue, Provenance, Reading, Sample, Value, dim_value_of, value_of
from gpufleet.model.snapshot import Device, ReaderReport, Snapshot, Source
from gpufleet.model.status import LANE_SECONDS
from gpufleet.model.time import to_ns
from gpufleet.model.view import Scope, Side, ViewKind

_R = TypeVar("_R", Reading, DimReading)

_FAILED = frozenset({LOST, RESET_REQUIRED, ERROR})


def judge_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return the document with states and identities that its own readings support.

    - The driver's defaults for what a board does not have (an identity of zeros, ECC counts without ECC) are absent.
    - The state of a GPU is the worst of the stated one and of those that the readings of each reader prove, as for the
      states of several readers: see `deciding_state`. A GPU that only the PCI bus lists has no state.
    """
    return msgspec.structs.replace(
        snapshot,
        devices=_judge_devices(snapshot.devices, snapshot.readers),
        guests=tuple(
            msgspec.structs.replace(guest, devices=_judge_devices(guest.devices, guest.readers))
            for guest in snapshot.guests
        ),
    )


def _judge_devices(devices: Sequence[Device], readers: Sequence[ReaderReport]) -> tuple[Device, ...]:
    intervals = {
        one.reader: one.interval_seconds
        for one in readers
        if one.lane == CATALOGUE[STATE].lane.value and one.interval_seconds is not None
    }
    instances: dict[str | None, list[Device]] = {}
    for device in devices:
        if device.kind is not ViewKind.GPU:
            instances.setdefault(device.parent, []).append(device)
    judged = [
        _with_state(device, instances.get(device.key, ()), intervals)
        if device.kind is ViewKind.GPU and device.side is not Side.PCI_ONLY
        else device
        for device in devices
    ]
    cleaned = drop_board_defaults([_sample(one) for one in judged])  # last: their absences are no evidence
    return tuple(_with_values(device, sample) for device, sample in zip(judged, cleaned, strict=True))


def _sample(device: Device) -> Sample:
    """Return all readings of a device as one sample, whatever their readers and lanes are."""
    return Sample(
        view=device.view,
        reader="",
        lane=Lane.FAST,
        measured_at=0,
        values={name: value_of(reading) for name, reading in device.readings.items()},
        dims=tuple(dim_value_of(one) for one in device.dimensions),
    )


def _with_values(device: Device, sample: Sample) -> Device:
    readings = {name: _replaced(reading, sample.values[name]) for name, reading in device.readings.items()}
    dims = zip(device.dimensions, sample.dims, strict=True)
    return msgspec.structs.replace(
        device, readings=readings, dimensions=tuple(_replaced(reading, dim.value) for reading, dim in dims)
    )


def _replaced(reading: _R, value: Value | Absent) -> _R:
    if reading.value is None or not isinstance(value, Absent):
        return reading
    return msgspec.structs.replace(reading, value=None, absent=value.reason, detail=value.detail)


class _ProvenState(NamedTuple):
    """State of a GPU, and the reading that states it, or the newest one that proves it."""

    state: str
    reading: Reading | DimReading


def _with_state(device: Device, instances: Sequence[Device], intervals: Mapping[str, float]) -> Device:
    stated = device.readings.get(STATE)
    found = [_ProvenState(stated.value, stated)] if stated is not None and isinstance(stated.value, str) else []
    has_state = bool(found)
    if stated is not None:
        read_at = _state_read_at(device, stated)
        judged, *parts = [_without_old_failures(one, stated.reader, read_at) for one in (device, *instances)]
        found += _evidence(judged, parts)
    else:
        found += _evidence(device, instances)
    imported = {one.reader for one in device.sources if one.provenance is Provenance.IMPORTED}
    reports = [
        StateReport(
            one.state,
            _measured_at(one.reading),
            intervals.get(one.reading.reader, LANE_SECONDS[CATALOGUE[STATE].lane]),
            one.reading.reader in imported,
        )
        for one in found
    ]
    place = deciding_state(reports)
    if place is None or (has_state and place == 0):
        return device
    state, reading = found[place]
    proven = Reading(value=state, reader=reading.reader, measured_at=reading.measured_at)
    return msgspec.structs.replace(device, readings={**device.readings, STATE: proven})


def _state_read_at(device: Device, stated: Reading) -> int:
    """Return when the state of a GPU was last read, nanoseconds since 1970.

    If it is absent, this is the newest pass of any reader of its own: the absence has the time of the first one.
    """
    lane = CATALOGUE[STATE].lane
    own = [one for one in device.sources if one.lane == lane and one.provenance is not Provenance.IMPORTED]
    return max([_measured_at(one) for one in (stated, *(own if stated.value is None else ()))])


def _without_old_failures(device: Device, reader: str, read_at: int) -> Device:
    """Return a device without failures that were read before the state of its GPU was last read.

    They prove nothing, also if that state is absent: slow passes can have read a GPU that has recovered since. Failures
    of another reader's fast lane are kept: see `deciding_state`.

    Args:
        device: GPU or instance.
        reader: of the state.
        read_at: result of `_state_read_at` for the GPU.
    """

    def is_old(metric: str, found: Reading | DimReading) -> bool:
        is_before = 0 < _measured_at(found) < read_at and (found.reader == reader or not has_state_lane(metric))
        return is_before and found.absent is not None and is_failure(found.absent)

    return msgspec.structs.replace(
        device,
        readings={name: one for name, one in device.readings.items() if not is_old(name, one)},
        dimensions=tuple(one for one in device.dimensions if not is_old(one.metric, one)),
    )


def _evidence(device: Device, instances: Sequence[Device]) -> Iterator[_ProvenState]:
    """Yield the failures that the readings of each reader prove.

    All readers together prove `unreadable`: a reader of a merged document can have the core readings for another one.
    """
    failed: dict[str, list[Reading | DimReading]] = {}
    for one in (device, *instances):
        readings: list[Reading | DimReading] = [*one.readings.values(), *one.dimensions]
        for reading in readings:
            if reading.absent is not None and reading.scope is Scope.OWN and is_failure(reading.absent):
                failed.setdefault(reading.reader, []).append(reading)
    for reader, of_reader in failed.items():
        of_instances = [_of_reader(one, reader) for one in instances]
        state = state_with_instances(state_of(*_of_reader(device, reader)), of_instances)
        if isinstance(state, str) and state in _FAILED:
            yield _ProvenState(state, max(of_reader, key=_measured_at))
    device = _without_ended_series(device)
    core = [one for name, one in device.readings.items() if name in CORE_READINGS and one.scope is Scope.OWN]
    if core and state_of(*_of_reader(device)) == UNREADABLE:
        yield _ProvenState(UNREADABLE, max(core, key=_measured_at))


def _without_ended_series(device: Device) -> Device:
    """Return a device without imported readings that are absent and did not fail: their source can have stopped."""
    imported = {one.reader for one in device.sources if one.provenance is Provenance.IMPORTED}
    kept = {
        name: one
        for name, one in device.readings.items()
        if one.absent is None or one.reader not in imported or is_failure(one.absent)
    }
    return msgspec.structs.replace(device, readings=kept)


def _of_reader(device: Device, reader: str | None = None) -> tuple[dict[str, Value | Absent], Iterable[DimValue]]:
    """Return the device's own readings by a reader, or by all readers; without the state."""
    found = {name: one for name, one in device.readings.items() if one.scope is Scope.OWN and name != STATE}
    dims = [one for one in device.dimensions if one.scope is Scope.OWN]
    return (
        {name: value_of(one) for name, one in found.items() if reader in (None, one.reader)},
        [dim_value_of(one) for one in dims if reader in (None, one.reader)],
    )


def _measured_at(found: Reading | DimReading | Source) -> int:
    at = found.measured_at
    return 0 if at is None or at.tzinfo is None else to_ns(at)
