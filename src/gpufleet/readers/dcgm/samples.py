"""From what an engine told of its GPUs in one pass to samples. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire.codes import REASONS, STALE_DATA
from gpufleet.codecs.dcgm_wire.commands import LADDER
from gpufleet.codecs.dcgm_wire.values import GPU, Entity, FieldValue
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.events import DRIVER_EVENTS
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.text import clean
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address
from gpufleet.readers.dcgm.mapping import activity
from gpufleet.readers.dcgm.mapping.device import (
    DRIVER,
    MACHINE_ROWS,
    MIG_MODE,
    PCI_BUS_ID,
    STATE,
    UUID,
    VGPU_GUEST,
    VIRTUAL_MODE,
    absent_device,
    map_device,
)
from gpufleet.readers.dcgm.mapping.part import NAME as PROFILE
from gpufleet.readers.dcgm.mapping.part import map_part, map_part_size
from gpufleet.readers.dcgm.mapping.row import Modes, read
from gpufleet.readers.dcgm.session import Part, Session

NAME = "dcgm"
_STATES = {Reason.GPU_LOST: "lost", Reason.RESET_REQUIRED: "reset_required"}
_TEXT_LETTERS = 128
STALE_MICROSECONDS = 10_000_000
"""A number that is older than this, by the engine's clock, is not of now: it is sampled every second, or read live."""

Values = Mapping[int, FieldValue]
_NOTHING: Values = {}


class Told(NamedTuple):
    """What one pass brought.

    Attributes:
        session: with the engine.
        live: entity to field to value, read from the driver at the instant of asking.
        watched: the same of profiling fields, as the engine sampled them.
        refused: profiling field to the code with which the engine refused to watch it.
        no_profiling: why no profiling field could be asked, or None.
        parts: MIG devices, or None where no GPU is in MIG mode.
        unlisted: why they are those of an earlier pass, or None.
        xids_watched: whether the engine tells of XIDs.
        at: nanoseconds since 1970 by our clock.
        offset_ns: the engine's clock minus ours, or None where no value bore a time.
    """

    session: Session
    live: Mapping[tuple[int, int], Values]
    watched: Mapping[tuple[int, int], Values] = {}
    refused: Mapping[int, int] = {}
    no_profiling: Absent | None = None
    parts: tuple[Part, ...] | None = None
    unlisted: Absent | None = None
    xids_watched: bool = False
    at: int = 0
    offset_ns: int | None = None


def name_gpus(
    session: Session, live: Mapping[tuple[int, int], Values], side: Side
) -> tuple[dict[Entity, View], list[str]]:
    """Return the views of the GPUs that can be named, and words for those that cannot."""
    found: dict[Entity, View] = {}
    errors: list[str] = []
    if session.listed > len(session.gpus):
        errors.append(f"the engine lists {session.listed} GPUs, the first {len(session.gpus)} are read")
    taken: dict[str, Entity] = {}
    for gpu in session.gpus:
        values = live.get(gpu, _NOTHING)
        uuid, pci = told_text(values.get(UUID)), told_text(values.get(PCI_BUS_ID))
        try:
            address = normalise_pci_address(pci) if pci else None
        except ValueError:
            address = None
        if not uuid and not address:
            errors.append(f"GPU {gpu.id} of the engine cannot be named: it tells no UUID and no PCI address")
            continue
        view = View(kind=ViewKind.GPU, side=side, uuid=uuid or None, pci_address=address, index=gpu.id)
        other = taken.setdefault(view.key, gpu)
        if other != gpu:
            errors.append(f"GPU {gpu.id} of the engine has the name of GPU {other.id}: {view.key}")
            found.pop(other, None)
            continue
        found[gpu] = view
    return found, errors


def gpu_samples(told: Told, views: Mapping[Entity, View], lane: Lane) -> list[Sample]:
    """Return a sample a GPU."""
    return [_gpu(told, gpu, view, lane) for gpu, view in views.items()]


def _gpu(told: Told, gpu: Entity, view: View, lane: Lane) -> Sample:
    live = told.live.get(gpu, _NOTHING)
    lost, modes = lost_why(live), modes_of(live)
    values: dict[str, Value | Absent]
    dims: tuple[DimValue, ...]
    values, dims = absent_device(lost, lane) if lost else map_device(live, lane, modes, told.session.unknown)
    if lane is Lane.FAST:
        values[STATE] = _STATES.get(lost.reason, "unreadable") if lost else "ok"
        values |= _activity(told, gpu, lost, modes)
        if told.parts is not None and modes.mig:
            values["gpu_mig_devices"] = told.unlisted or sum(part.gpu == gpu for part in told.parts)
    elif lane is Lane.STATIC:
        values["gpu_pci_address"] = view.pci_address or Absent(Reason.NO_DATA, f"DCGM {PCI_BUS_ID}")
    else:
        values[DRIVER_EVENTS] = int(told.xids_watched)
    return _sample(told, view, lane, values, dims, told_text(live.get(DRIVER)))


def _activity(told: Told, gpu: Entity, lost: Absent | None, modes: Modes) -> dict[str, Value | Absent]:
    why = lost or told.no_profiling
    if why is not None:
        return activity.absent_activity(activity.ROWS, why)
    return activity.map_activity(activity.ROWS, told.watched.get(gpu, _NOTHING), told.refused, modes)


def part_samples(told: Told, views: Mapping[Entity, View], lane: Lane) -> list[Sample]:
    """Return a sample a MIG device of a GPU that has a name."""
    found = []
    for part in told.parts or ():
        gpu = views.get(part.gpu)
        if gpu is None or lane is Lane.STATIC:
            continue
        live = told.live.get(part.compute_instance, _NOTHING)
        values = map_part_size(part.slices) if lane is Lane.SLOW else _part(told, part, live)
        driver = told_text(told.live.get(part.gpu, _NOTHING).get(DRIVER))
        found.append(_sample(told, _part_view(gpu, part, live), lane, values, (), driver))
    return found


def _part(told: Told, part: Part, live: Values) -> dict[str, Value | Absent]:
    above = told.live.get(part.gpu_instance, _NOTHING)
    values = map_part(live, told_text(above.get(PROFILE)), part.ids, part.slices, told.session.unknown)
    if told.unlisted is not None:
        return dict.fromkeys((*values, *activity.absent_activity(activity.RATIO_ROWS, told.unlisted)), told.unlisted)
    if told.no_profiling is not None:
        return values | activity.absent_activity(activity.RATIO_ROWS, told.no_profiling)
    watched = dict(told.watched.get(part.compute_instance, _NOTHING))
    memory = told.watched.get(part.gpu_instance, _NOTHING).get(activity.DRAM)
    if memory is not None:
        watched[activity.DRAM] = memory
    return values | activity.map_activity(activity.RATIO_ROWS, watched, told.refused, Modes())


def _part_view(gpu: View, part: Part, live: Values) -> View:
    """Name a MIG device: by its own UUID where the engine tells it, else by its ids and its GPU."""
    uuid = told_text(live.get(UUID))
    ids = f"{part.ids[0]}/{part.ids[1]}"
    own = uuid.startswith("MIG-")
    return View(
        kind=ViewKind.MIG,
        side=gpu.side,
        uuid=uuid if own else None,
        instance=ids if own else f"{ids}@{gpu.pci_address or gpu.uuid}",
        parent=gpu.key,
    )


def machine_sample(told: Told, lane: Lane) -> Sample | None:
    """Return what is told of the engine and its machine."""
    values: dict[str, Value | Absent]
    if lane is Lane.STATIC:
        values = engine_values(told.session)
        live = next((told.live[gpu] for gpu in told.session.gpus if gpu in told.live), _NOTHING)
        values |= {row.metric: _cleaned(read(row, live, Modes(), told.session.unknown)) for row in MACHINE_ROWS}
    elif lane is Lane.FAST:
        offset = told.offset_ns
        values = {
            "dcgm_devices": told.session.listed,
            "dcgm_clock_offset_seconds": Absent(Reason.NO_DATA) if offset is None else offset / 1e9,
        }
    else:
        return None
    return Sample(view=None, reader=NAME, lane=lane, measured_at=told.at, values=values)


def engine_values(session: Session) -> dict[str, Value | Absent]:
    """Return which engine it is, and how well it is understood."""
    return {
        "dcgm_version": session.version,
        "dcgm_compatibility": "first_choice" if session.form is LADDER[0] else "fallback",
    }


def incompatible_sample(version: str, at: int) -> Sample:
    """Return what is told of an engine that is not understood."""
    told = version or Absent(Reason.NOT_REPORTED, "HOSTENGINE_VERSION")
    values: dict[str, Value | Absent] = {"dcgm_version": told, "dcgm_compatibility": "incompatible"}
    return Sample(view=None, reader=NAME, lane=Lane.STATIC, measured_at=at, values=values)


def without_stale(values: Iterable[FieldValue], engine_now: int) -> list[FieldValue]:
    """Return the values; a number that is too old by the engine's clock (in microseconds) has a status instead."""
    oldest = engine_now - STALE_MICROSECONDS
    return [
        value._replace(status=STALE_DATA)
        if value.status == 0 and value.microseconds < oldest and not isinstance(value.value, str)
        else value
        for value in values
    ]


def newest_microseconds(values: Iterable[FieldValue]) -> int:
    """Return the newest time that a value bears, by the engine's clock; 0 where none does."""
    return max((value.microseconds for value in values if value.status == 0 and value.microseconds > 0), default=0)


def modes_of(live: Values) -> Modes:
    """Return the modes of a GPU."""
    return Modes(told_number(live.get(MIG_MODE)) == 1, told_number(live.get(VIRTUAL_MODE)) == VGPU_GUEST)


def lost_why(live: Values) -> Absent | None:
    """Return why nothing of this GPU can be read, if that is so."""
    reasons = {REASONS.get(value.status) for value in live.values()}
    return next((Absent(reason) for reason in _STATES if reason in reasons), None)


def told_text(value: FieldValue | None) -> str:
    """Return a text without control characters and blanks around it, or an empty one."""
    if value is None or value.status or not isinstance(value.value, str) or value.value.startswith("<<<"):
        return ""
    return clean(value.value)[:_TEXT_LETTERS].strip()


def told_number(value: FieldValue | None) -> int | None:
    """Return a whole number, or None."""
    return value.value if value is not None and not value.status and isinstance(value.value, int) else None


def _sample(
    told: Told,
    view: View,
    lane: Lane,
    values: dict[str, Value | Absent],
    dims: tuple[DimValue, ...],
    driver: str,
) -> Sample:
    session = int.from_bytes(hashlib.blake2b(driver.encode(), digest_size=8).digest(), "big") >> 11 if driver else 0
    cleaned = {name: _cleaned(value) for name, value in values.items()}
    return Sample(
        view=view, reader=NAME, lane=lane, measured_at=told.at, values=cleaned, dims=dims, driver_session=session
    )


def _cleaned(value: Value | Absent) -> Value | Absent:
    return clean(value)[:_TEXT_LETTERS] if isinstance(value, str) else value


def entities_named(views: Mapping[Entity, View], parts: Iterable[Part]) -> dict[Entity, tuple[View, dict[str, str]]]:
    """Return entity to the view of its GPU, and the words that name the instance on it."""
    found: dict[Entity, tuple[View, dict[str, str]]] = {gpu: (view, {}) for gpu, view in views.items()}
    for part in parts:
        view = views.get(part.gpu)
        if view is not None:
            gpu, compute = map(str, part.ids)
            found[part.gpu_instance] = (view, {"gpu_instance": gpu})
            found[part.compute_instance] = (view, {"gpu_instance": gpu, "compute_instance": compute})
    assert all(entity.group >= GPU for entity in found)
    return found
