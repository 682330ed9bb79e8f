"""Mapping of the driver's answers to the catalogue: one file per group, as in `calls`."""

import functools
from collections.abc import Iterable, Mapping

from gpufleet.fleet.board import (
    ECC,
    METRICS_OF_PART,
    NAME,
    drop_activity_without_memory,
    drop_defaults_of_guest,
    drop_empty_protected_memory,
    drop_fabric_defaults,
    drop_place_defaults,
    drop_unproven_uses,
    in_mig_mode,
    part_absence,
    unproven_uses,
    without_unproven_uses,
)
from gpufleet.fleet.ecc import ecc_count, proven_ecc_mode
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, GpuRole, Lane
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import CALLS, INSTANCE_CALLS
from gpufleet.readers.nvml.context import NOT_SUPPORTED
from gpufleet.readers.nvml.mapping import activity, board, errors, links, mig, vgpu
from gpufleet.readers.nvml.mapping.lane import LaneCache, LaneRows
from gpufleet.readers.nvml.mapping.row import NO_MODES, DeviceModes, MetricRow, read, state
from gpufleet.readers.nvml.mapping.units import same
from gpufleet.readers.nvml.parse import absence_of, label_of, part_of
from gpufleet.readers.nvml.protocol import CallResult, GpuPassRecord, InstanceRecord

Readings = tuple[dict[str, Value | Absent], tuple[DimValue, ...]]
"""Values by metric, and readings with dimensions."""

ROWS: tuple[MetricRow, ...] = (
    *board.ROWS,
    *errors.ROWS,
    *links.ROWS,
    *activity.ROWS,
    *mig.GPU_ROWS,
    *vgpu.GPU_ROWS,
)
"""Readings of a GPU that come from one call each. `gpu_state`, `gpu_pci_address` and the modes have other sources."""

INSTANCE_ROWS: dict[str, tuple[MetricRow, ...]] = {"mig": mig.ROWS, "vgpu": vgpu.ROWS}
"""Readings of an instance, by its kind."""

MIG_MODE, VIRTUALIZATION_MODE = CATALOGUE["gpu_mig_mode"], CATALOGUE["gpu_virtualization_mode"]
MIG_PENDING = CATALOGUE["gpu_mig_mode_pending"]

TOTALS = {"mig": CATALOGUE["gpu_mig_devices"], "vgpu": CATALOGUE["gpu_vgpu_instances"]}
"""Number of instances of a GPU, by kind."""


_LANES = {lane: LaneRows(lane, ROWS, CALLS[lane]) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)}
_INSTANCE_LANES = {
    kind: {lane: LaneRows(lane, rows, INSTANCE_CALLS[kind][lane], every_role=True) for lane in _LANES}
    for kind, rows in INSTANCE_ROWS.items()
}
_OTHER_SOURCES = {"gpu_state", "gpu_pci_address", MIG_MODE.name, MIG_PENDING.name, VIRTUALIZATION_MODE.name}
_SUPPORTED = board.SUPPORTED_EVENTS_ROW
_SUPPORTED_POSITION = [call.key for call in CALLS["static"]].index(_SUPPORTED.call)


def map_device(record: GpuPassRecord, lane: Lane, cache: LaneCache | None = None) -> Readings:
    """Return the readings of a device that answered, without `gpu_state` and `gpu_pci_address`.

    Args:
        record: its answers.
        lane: lane of the answers.
        cache: results of the device's previous pass of this lane, updated by this one.
    """
    modes = modes_of(record.roles)
    values, dims = _LANES[lane].map(record.answers, modes, cache or LaneCache())
    if lane is MIG_MODE.lane:
        values[MIG_MODE.name] = state(MIG_MODE, part_of(record.mig, 0), modes)
        values[MIG_PENDING.name] = state(MIG_PENDING, part_of(record.mig, 1), modes)
    if lane is VIRTUALIZATION_MODE.lane:
        values[VIRTUALIZATION_MODE.name] = state(VIRTUALIZATION_MODE, record.virtualization, modes)
    if lane is Lane.FAST:
        dims += board.active_reasons(values[board.CLOCK_EVENT_MASK])
        totals = [(metric, record.totals[kind]) for kind, metric in TOTALS.items() if kind in record.totals]
        values |= {
            metric.name: read(MetricRow(metric.name, "", same), metric, total, modes) for metric, total in totals
        }
        drop_activity_without_memory(values)
    if lane is Lane.SLOW:
        dims = list(drop_fabric_defaults(values, dims))
        drop_empty_protected_memory(values)
        if modes.guest:
            dims = list(drop_defaults_of_guest(values, dims))
        if modes.mig:
            values = {name: in_mig_mode(name, value) for name, value in values.items()}
            dims = [_replaced(dim, in_mig_mode(dim.metric, dim.value)) for dim in dims]
    if lane is Lane.STATIC:
        drop_place_defaults(values, values.get(NAME))
        mask = read(_SUPPORTED, CATALOGUE[_SUPPORTED.metric], record.answers[_SUPPORTED_POSITION], modes)
        dims += board.supported_reasons(mask)
    return _of_board(values, dims, record)


def map_instance(record: InstanceRecord, lane: Lane, gpu: GpuPassRecord) -> Readings:
    """Return the readings of an instance of a GPU that answered."""
    values, dims = _INSTANCE_LANES[record.kind][lane].map(record.answers, NO_MODES, LaneCache())
    return _of_board(_identity_values(record.kind, record.identity, lane) | values, dims, gpu)


def _of_board(values: dict[str, Value | Absent], dims: Iterable[DimValue], gpu: GpuPassRecord) -> Readings:
    """Return the readings, without values of parts that the board does not have, or that have no known mode."""
    parts, unproven = gpu.parts, _unproven_uses(gpu.product)
    drop_unproven_uses(values, unproven)
    dims = without_unproven_uses(dims, unproven)
    lacks = [part for part in METRICS_OF_PART if part in parts and _is_lacking(parts[part])]
    for name in {name for part in lacks for name in METRICS_OF_PART[part]} & values.keys():
        values[name] = part_absence(name, values[name], lacks, name)
    if lacks:
        dims = tuple([_replaced(dim, part_absence(dim.metric, dim.value, lacks, dim.metric)) for dim in dims])
    ecc = parts.get(ECC)
    if ecc is None or not ecc.code or ECC in lacks:
        return values, dims
    call = label_of(ecc.breadcrumb)
    counts = [*values.items(), *((dim.metric, dim.value) for dim in dims)]
    mode = proven_ecc_mode(absence_of(ecc.code, call, ecc.value), counts)
    return {name: ecc_count(name, value, mode, call) for name, value in values.items()}, tuple(
        [_replaced(dim, ecc_count(dim.metric, dim.value, mode, call)) for dim in dims]
    )


def _replaced(dim: DimValue, value: Value | Absent) -> DimValue:
    return dim if value is dim.value else DimValue(dim.metric, dim.labels, value)


def _unproven_uses(product: CallResult | None) -> Mapping[str, Absent]:
    if product is None:
        return {}
    if product.code:
        return unproven_uses(absence_of(product.code, label_of(product.breadcrumb), product.value))
    return unproven_uses(str(product.value))


def _is_lacking(answer: CallResult) -> bool:
    """Return whether the board lacks a part; after another error than "not supported" this is unknown."""
    return answer.code == NOT_SUPPORTED or (answer.code == 0 and not answer.value)


def absent_instance(kind: str, why: Absent, lane: Lane) -> Readings:
    """Return all readings of an instance as absent, for a GPU without an answer."""
    values, dims = _INSTANCE_LANES[kind][lane].absent(why)
    return values | dict.fromkeys(_identity_values(kind, {}, lane), why), tuple(dims)


def _identity_values(kind: str, identity: dict[str, CallResult], lane: Lane) -> dict[str, Value | Absent]:
    return mig.identity_values(identity, lane) if kind == "mig" else {}


def absent_device(why: Absent, lane: Lane) -> Readings:
    """Return all readings of a device as absent, for a device without an answer."""
    values, dims = _LANES[lane].absent(why)
    values |= {name: why for name in _OTHER_SOURCES if CATALOGUE[name].lane is lane}
    if lane is Lane.FAST:
        dims += board.active_reasons(why)
    if lane is Lane.STATIC:
        dims += board.supported_reasons(why)
    return values, tuple(dims)


@functools.cache  # there are few roles
def modes_of(roles: tuple[str, ...]) -> DeviceModes:
    """Return the modes of a device in these roles."""
    found = frozenset([GpuRole(role) for role in roles])
    return DeviceModes(GpuRole.MIG_PARENT in found, GpuRole.VGPU_GUEST in found, found)


def cuda_version(number: protocol.Value) -> Value | None:
    """Convert NVML's 13000 to `13.0` (major times 1000 plus minor times 10)."""
    if not isinstance(number, int) or not 0 < number < 1_000_000:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"
