"""Conversion of one pass over an engine to samples. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire.codes import DEVICE_CODES, REASONS, STALE_DATA, blank_of
from gpufleet.codecs.dcgm_wire.commands import LATEST_FORMS
from gpufleet.codecs.dcgm_wire.values import GPU, Entity, FieldValue
from gpufleet.fleet.board import drop_unproven_uses, unproven_uses
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.events import DRIVER_EVENTS
from gpufleet.model.device_state import device_reason, state_of, state_with_instances
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.text import clean
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address
from gpufleet.readers.dcgm.mapping import activity
from gpufleet.readers.dcgm.mapping.device import (
    MACHINE_ROWS,
    MIG_MODE,
    PCI_BUS_ID,
    STATE,
    UUID,
    VGPU_GUEST,
    VIRTUAL_MODE,
    absent_device,
    ecc_mode,
    map_device,
    product_name,
)
from gpufleet.readers.dcgm.mapping.device import NAME as PROFILE
from gpufleet.readers.dcgm.mapping.mig import map_mig, map_mig_size
from gpufleet.readers.dcgm.mapping.row import EngineGpuModes, fields_of, read_row
from gpufleet.readers.dcgm.session import EngineSession, MigDevice, mig_entities_of

NAME = "dcgm"
MAX_TEXT_LENGTH = 128
STALE_MICROSECONDS = 10_000_000
"""Age by the engine's clock beyond which a number is stale: the engine samples every second or reads live."""

Values = Mapping[int, FieldValue]
_NOTHING: Values = {}
_NO_VALUE = Absent(Reason.NO_DATA, "the engine has no value of the GPU")
_MACHINE_FIELDS = fields_of(MACHINE_ROWS)
"""Fields that every GPU repeats: their values do not prove that it answers."""


class PassReadings(NamedTuple):
    """Raw readings of one pass.

    Attributes:
        session: with the engine.
        live: entity to field to value, read live from the driver.
        watched: entity to profiling field to value, as sampled by the engine.
        refused: profiling fields that the engine refused to watch, with its return code.
        profiling_absence: reason if profiling fields could not be requested at all, or None.
        mig_devices: MIG devices, or None if no GPU is in MIG mode.
        listing_absence: reason if the MIG devices are those of an earlier pass and are not read, or None.
        xids_watched: whether the engine reports XIDs.
        at: nanoseconds since 1970 by this machine's clock.
        offset_ns: the engine's clock minus this machine's, or None if no value had a timestamp.
    """

    session: EngineSession
    live: Mapping[tuple[int, int], Values]
    watched: Mapping[tuple[int, int], Values] = {}
    refused: Mapping[int, int] = {}
    profiling_absence: Absent | None = None
    mig_devices: tuple[MigDevice, ...] | None = None
    listing_absence: Absent | None = None
    xids_watched: bool = False
    at: int = 0
    offset_ns: int | None = None


def identify_gpus(
    session: EngineSession,
    live: Mapping[tuple[int, int], Values],
    side: Side,
    known: Mapping[Entity, View],
) -> tuple[dict[Entity, View], list[str]]:
    """Return the views of the GPUs, and error messages for GPUs without a usable identity.

    Args:
        session: with the engine.
        live: values read live.
        side: side of the views.
        known: views of earlier passes over the same engine, whose GPU ids are fixed. A lost GPU that reports no
            identity keeps its own, and so does a GPU without any value.
    """
    found: dict[Entity, View] = {}
    errors: list[str] = []
    if session.gpu_count > len(session.gpus):
        errors.append(f"the engine lists {session.gpu_count} GPUs, only the first {len(session.gpus)} are read")
    owners: dict[str, Entity] = {}
    for gpu in session.gpus:
        values = live.get(gpu, _NOTHING)
        uuid, address = _identity(values)
        before = known.get(gpu)
        is_unread = lost_reason(values) is not None or _has_no_value(values)
        if before is not None and is_unread and _agrees(before, values):
            uuid, address = before.uuid or "", before.pci_address
        if not uuid and not address:
            errors.append(f"GPU {gpu.id} of the engine reports no UUID and no PCI address")
            continue
        view = View(kind=ViewKind.GPU, side=side, uuid=uuid or None, pci_address=address, index=gpu.id)
        other = owners.setdefault(view.key, gpu)
        if other != gpu:
            errors.append(f"GPU {gpu.id} and GPU {other.id} of the engine report the same identity: {view.key}")
            found.pop(other, None)
            continue
        found[gpu] = view
    return found, errors


def confirms(known: Mapping[Entity, View], live: Mapping[tuple[int, int], Values]) -> bool:
    """Return whether every identity that a GPU of an engine reports is the known one of its id.

    Args:
        known: views of passes over an earlier connection. A restarted engine can have other ids.
        live: values read live.
    """
    return all(_agrees(view, live.get(gpu, _NOTHING)) for gpu, view in known.items())


def _identity(values: Values) -> tuple[str, str | None]:
    """Return the UUID and the PCI address that a GPU reports; empty and None if it reports none."""
    uuid, pci = text_of(values.get(UUID)), text_of(values.get(PCI_BUS_ID))
    try:
        return uuid, normalise_pci_address(pci) if pci else None
    except ValueError:
        return uuid, None


def _agrees(known: View, values: Values) -> bool:
    """Return whether a GPU reports the known identity, or a part of it, or none."""
    uuid, address = _identity(values)
    return (uuid or known.uuid, address or known.pci_address) == (known.uuid, known.pci_address)


def gpu_samples(readings: PassReadings, views: Mapping[Entity, View], lane: Lane) -> list[Sample]:
    """Return one sample per GPU."""
    return [_gpu(readings, gpu, view, lane) for gpu, view in views.items()]


def _gpu(readings: PassReadings, gpu: Entity, view: View, lane: Lane) -> Sample:
    live = readings.live.get(gpu, _NOTHING)
    lost, modes = _lost_reason(readings, gpu), modes_of(live)
    values: dict[str, Value | Absent]
    dims: tuple[DimValue, ...]
    values, dims = absent_device(lost, lane) if lost else map_device(live, lane, modes, readings.session.unknown)
    if lane is Lane.FAST:
        values[STATE] = state_with_instances(state_of(values, dims), _instances(readings, gpu))
        values |= _activity(readings, gpu, lost, modes)
        if readings.mig_devices is not None and modes.mig:
            values["gpu_mig_devices"] = readings.listing_absence or sum(
                device.gpu == gpu for device in readings.mig_devices
            )
    elif lane is Lane.STATIC:
        values["gpu_pci_address"] = view.pci_address or Absent(Reason.NO_DATA, f"DCGM {PCI_BUS_ID}")
    else:
        values[DRIVER_EVENTS] = int(readings.xids_watched)
    return _sample(readings, view, lane, values, dims)


def _instances(readings: PassReadings, gpu: Entity) -> list[tuple[dict[str, Value | Absent], tuple[DimValue, ...]]]:
    """Return the readings of the MIG devices of a GPU."""
    own = [device for device in readings.mig_devices or () if device.gpu == gpu]
    return [(_mig_values(readings, one, readings.live.get(one.compute_instance, _NOTHING)), ()) for one in own]


def _activity(
    readings: PassReadings, gpu: Entity, lost: Absent | None, modes: EngineGpuModes
) -> dict[str, Value | Absent]:
    why = lost or readings.profiling_absence
    if why is not None:
        return activity.absent_activity(activity.ROWS, why)
    found = activity.map_activity(activity.ROWS, readings.watched.get(gpu, _NOTHING), readings.refused, modes)
    product = product_name(readings.live.get(gpu, _NOTHING), modes, readings.session.unknown)
    drop_unproven_uses(found, unproven_uses(product))
    return found


def mig_samples(
    readings: PassReadings, views: Mapping[Entity, View], unread: Mapping[str, Absent], lane: Lane
) -> list[Sample]:
    """Return one sample per MIG device whose GPU has a view and is not `unread`."""
    found = []
    for device in readings.mig_devices or ():
        gpu = views.get(device.gpu)
        if gpu is None or gpu.key in unread or lane is Lane.STATIC:
            continue
        live = readings.live.get(device.compute_instance, _NOTHING)
        values = map_mig_size(device.slices) if lane is Lane.SLOW else _mig_values(readings, device, live)
        found.append(_sample(readings, _mig_view(gpu, device, live), lane, values, ()))
    return found


def _mig_values(readings: PassReadings, device: MigDevice, live: Values) -> dict[str, Value | Absent]:
    above = readings.live.get(device.gpu_instance, _NOTHING)
    values = map_mig(live, text_of(above.get(PROFILE)), device.ids, device.slices, readings.session.unknown)
    if readings.profiling_absence is not None:
        return values | activity.absent_activity(activity.RATIO_ROWS, readings.profiling_absence)
    watched = dict(readings.watched.get(device.compute_instance, _NOTHING))
    memory = readings.watched.get(device.gpu_instance, _NOTHING).get(activity.DRAM)
    if memory is not None:
        watched[activity.DRAM] = memory
    return values | activity.map_activity(activity.RATIO_ROWS, watched, readings.refused, EngineGpuModes())


def _mig_view(gpu: View, device: MigDevice, live: Values) -> View:
    """Return the view of a MIG device, identified by its UUID if reported, otherwise by its ids and its GPU."""
    uuid = text_of(live.get(UUID))
    ids = f"{device.ids[0]}/{device.ids[1]}"
    own = uuid.startswith("MIG-")
    return View(
        kind=ViewKind.MIG,
        side=gpu.side,
        uuid=uuid if own else None,
        instance=ids if own else f"{ids}@{gpu.pci_address or gpu.uuid}",
        parent=gpu.key,
    )


def machine_sample(readings: PassReadings, lane: Lane) -> Sample | None:
    """Return the sample of the engine and its machine, or None if the lane has none."""
    values: dict[str, Value | Absent]
    if lane is Lane.STATIC:
        values = engine_values(readings.session)
        live = next((readings.live[gpu] for gpu in readings.session.gpus if gpu in readings.live), _NOTHING)
        values |= {
            row.metric: _cleaned(read_row(row, live, EngineGpuModes(), readings.session.unknown))
            for row in MACHINE_ROWS
        }
    elif lane is Lane.FAST:
        offset = readings.offset_ns
        values = {
            "dcgm_devices": readings.session.gpu_count,
            "dcgm_clock_offset_seconds": Absent(Reason.NO_DATA) if offset is None else offset / 1e9,
        }
    else:
        return None
    return Sample(view=None, reader=NAME, lane=lane, measured_at=readings.at, values=values)


def engine_values(session: EngineSession) -> dict[str, Value | Absent]:
    """Return the version of the engine, and its compatibility with this reader."""
    return {
        "dcgm_version": session.version,
        "dcgm_compatibility": "first_choice" if session.form is LATEST_FORMS[0] else "fallback",
    }


def incompatible_sample(version: str, at: int) -> Sample:
    """Return the sample of an engine whose version is not supported."""
    reported = version or Absent(Reason.NOT_REPORTED, "HOSTENGINE_VERSION")
    values: dict[str, Value | Absent] = {"dcgm_version": reported, "dcgm_compatibility": "incompatible"}
    return Sample(view=None, reader=NAME, lane=Lane.STATIC, measured_at=at, values=values)


def mark_stale(values: Iterable[FieldValue], engine_now: int, *, is_watched: bool = False) -> list[FieldValue]:
    """Return the values, with stale numbers marked by status.

    Args:
        values: live values, or watched ones.
        engine_now: microseconds of the engine's clock.
        is_watched: whether an old loss is stale, too: the GPU can have recovered after the engine last sampled the
            field. Live failures are always new.
    """
    oldest = engine_now - STALE_MICROSECONDS

    def is_stale(value: FieldValue) -> bool:
        if value.status:
            return is_watched and value.status in DEVICE_CODES and 0 < value.microseconds < oldest
        return value.microseconds < oldest and not isinstance(value.value, str)

    return [value._replace(status=STALE_DATA) if is_stale(value) else value for value in values]


def newest_microseconds(values: Iterable[FieldValue]) -> int:
    """Return the newest timestamp of the values in microseconds of the engine's clock; 0 if there is none."""
    return max((value.microseconds for value in values if value.status == 0 and value.microseconds > 0), default=0)


def modes_of(live: Values) -> EngineGpuModes:
    """Return the modes of a GPU."""
    is_guest = int_of(live.get(VIRTUAL_MODE)) == VGPU_GUEST
    return EngineGpuModes(mig=int_of(live.get(MIG_MODE)) == 1, guest=is_guest, ecc=ecc_mode(live))


def lost_reason(*readings: Values) -> Absent | None:
    """Return the worst reason if one of the values shows that the GPU is lost or requires a reset, otherwise None."""
    reasons = (REASONS.get(value.status) for values in readings for value in values.values())
    why = device_reason(reason for reason in reasons if reason is not None)
    return None if why is None else Absent(why)


def _lost_reason(readings: PassReadings, gpu: Entity) -> Absent | None:
    """Return the reason by all values of a GPU, of its GPU instances, and of its MIG devices."""
    entities = (gpu, *mig_entities_of([device for device in readings.mig_devices or () if device.gpu == gpu]))
    return lost_reason(*(of.get(entity, _NOTHING) for of in (readings.live, readings.watched) for entity in entities))


def unread_gpus(readings: PassReadings, views: Mapping[Entity, View]) -> dict[str, Absent]:
    """Return the view keys of the GPUs whose MIG devices are not read, with the reason.

    They are lost, have no value, or their MIG devices cannot be listed. The engine may still list the MIG devices of a
    lost GPU, but does not report their UUIDs.
    """
    found: dict[str, Absent] = {}
    for gpu, view in views.items():
        no_value = _NO_VALUE if _has_no_value(readings.live.get(gpu, _NOTHING)) else None
        why = _lost_reason(readings, gpu) or no_value or readings.listing_absence
        if why is not None:
            found[view.key] = why
    return found


def _has_no_value(live: Values) -> bool:
    """Return whether a GPU has no live value: an engine that has lost it sends blanks in their place."""
    own = [one for field, one in live.items() if field not in _MACHINE_FIELDS]
    return bool(own) and all(one.status or one.value is None or blank_of(one.value) is not None for one in own)


def text_of(value: FieldValue | None) -> str:
    """Return text without control characters and surrounding whitespace; empty if there is none."""
    if value is None or value.status or not isinstance(value.value, str) or value.value.startswith("<<<"):
        return ""
    return clean(value.value)[:MAX_TEXT_LENGTH].strip()


def int_of(value: FieldValue | None) -> int | None:
    """Return an integer, or None."""
    return value.value if value is not None and not value.status and isinstance(value.value, int) else None


def _sample(
    readings: PassReadings,
    view: View,
    lane: Lane,
    values: dict[str, Value | Absent],
    dims: tuple[DimValue, ...],
) -> Sample:
    """Return a sample without a driver session: an engine does not report the load of the driver."""
    cleaned = {name: _cleaned(value) for name, value in values.items()}
    return Sample(view=view, reader=NAME, lane=lane, measured_at=readings.at, values=cleaned, dims=dims)


def _cleaned(value: Value | Absent) -> Value | Absent:
    return clean(value)[:MAX_TEXT_LENGTH] if isinstance(value, str) else value


def event_subjects(
    views: Mapping[Entity, View], devices: Iterable[MigDevice]
) -> dict[Entity, tuple[View, dict[str, str]]]:
    """Return entity to the view of its GPU and the event attributes that identify an instance on it."""
    found: dict[Entity, tuple[View, dict[str, str]]] = {gpu: (view, {}) for gpu, view in views.items()}
    for device in devices:
        view = views.get(device.gpu)
        if view is not None:
            gpu, compute = map(str, device.ids)
            found[device.gpu_instance] = (view, {"gpu_instance": gpu})
            found[device.compute_instance] = (view, {"gpu_instance": gpu, "compute_instance": compute})
    assert all(entity.group >= GPU for entity in found)
    return found
