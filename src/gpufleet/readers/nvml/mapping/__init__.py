"""From the driver's answers to the catalogue: one file a group, as in `calls`."""

import functools

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Lane, Role
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import CALLS, INSTANCE_CALLS
from gpufleet.readers.nvml.mapping import (
    clocks,
    confidential,
    core,
    ecc,
    engines,
    fabric,
    gpm,
    memory,
    mig,
    nvlink,
    pcie,
    power,
    processes,
    vgpu,
)
from gpufleet.readers.nvml.mapping.lane import LaneRows, Memory
from gpufleet.readers.nvml.mapping.row import NO_MODES, Modes, Row, read, state
from gpufleet.readers.nvml.mapping.units import same
from gpufleet.readers.nvml.parse import part_of
from gpufleet.readers.nvml.protocol import Answer, DeviceRecord, InstanceRecord

Readings = tuple[dict[str, Value | Absent], tuple[DimValue, ...]]
"""Values by metric, and those with dimensions."""

ROWS: tuple[Row, ...] = (
    *engines.ROWS,
    *memory.ROWS,
    *power.ROWS,
    *clocks.ROWS,
    *ecc.ROWS,
    *pcie.ROWS,
    *nvlink.ROWS,
    *fabric.ROWS,
    *confidential.ROWS,
    *gpm.ROWS,
    *processes.ROWS,
    *core.ROWS,
    *mig.GPU_ROWS,
    *vgpu.GPU_ROWS,
)
"""Readings of a GPU that come from one call; `gpu_state`, `gpu_pci_address` and the modes come from elsewhere."""

INSTANCE_ROWS: dict[str, tuple[Row, ...]] = {"mig": mig.ROWS, "vgpu": vgpu.ROWS}
"""Readings of an instance, by its kind."""

MIG_MODE, VIRTUALIZATION_MODE = CATALOGUE["gpu_mig_mode"], CATALOGUE["gpu_virtualization_mode"]
MIG_PENDING = CATALOGUE["gpu_mig_mode_pending"]

TOTALS = {"mig": CATALOGUE["gpu_mig_devices"], "vgpu": CATALOGUE["gpu_vgpu_instances"]}
"""How many parts of a kind a GPU has."""


_LANES = {lane: LaneRows(lane, ROWS, CALLS[lane]) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)}
_INSTANCE_LANES = {
    kind: {lane: LaneRows(lane, rows, INSTANCE_CALLS[kind][lane], every_role=True) for lane in _LANES}
    for kind, rows in INSTANCE_ROWS.items()
}
_FROM_ELSEWHERE = {"gpu_state", "gpu_pci_address", MIG_MODE.name, MIG_PENDING.name, VIRTUALIZATION_MODE.name}
_SUPPORTED = clocks.SUPPORTED_ROW
_SUPPORTED_AT = [call.key for call in CALLS["static"]].index(_SUPPORTED.call)


def map_device(record: DeviceRecord, lane: Lane, memory: Memory | None = None) -> Readings:
    """Return the readings of a device that answered, without what is known of it from elsewhere.

    Args:
        record: its answers.
        lane: which they are of.
        memory: of the pass before of this lane over this device, if there was one.
    """
    modes = modes_of(record.roles)
    values, dims = _LANES[lane].map(record.answers, modes, memory or Memory())
    if lane is MIG_MODE.lane:
        values[MIG_MODE.name] = state(MIG_MODE, part_of(record.mig, 0), modes)
        values[MIG_PENDING.name] = state(MIG_PENDING, part_of(record.mig, 1), modes)
    if lane is VIRTUALIZATION_MODE.lane:
        values[VIRTUALIZATION_MODE.name] = state(VIRTUALIZATION_MODE, record.virtualization, modes)
    if lane is Lane.FAST:
        dims += clocks.active_reasons(values[clocks.MASK])
        totals = [(metric, record.found[kind]) for kind, metric in TOTALS.items() if kind in record.found]
        values |= {metric.name: read(Row(metric.name, "", same), metric, total, modes) for metric, total in totals}
    if lane is Lane.STATIC:
        mask = read(_SUPPORTED, CATALOGUE[_SUPPORTED.metric], record.answers[_SUPPORTED_AT], modes)
        dims += clocks.supported_reasons(mask)
    return values, tuple(dims)


def map_instance(record: InstanceRecord, lane: Lane) -> Readings:
    """Return the readings of an instance that answered, without what is known of it from elsewhere."""
    values, dims = _INSTANCE_LANES[record.kind][lane].map(record.answers, NO_MODES, Memory())
    return _identity_values(record.kind, record.identity, lane) | values, tuple(dims)


def absent_instance(kind: str, why: Absent, lane: Lane) -> Readings:
    """Return the readings of an instance of a GPU that gave nothing: all absent."""
    values, dims = _INSTANCE_LANES[kind][lane].absent(why)
    return values | dict.fromkeys(_identity_values(kind, {}, lane), why), tuple(dims)


def _identity_values(kind: str, identity: dict[str, Answer], lane: Lane) -> dict[str, Value | Absent]:
    return mig.identity_values(identity, lane) if kind == "mig" else {}


def absent_device(why: Absent, lane: Lane) -> Readings:
    """Return the readings of a device that gave nothing: everything this reader answers for, absent."""
    values, dims = _LANES[lane].absent(why)
    values |= {name: why for name in _FROM_ELSEWHERE if CATALOGUE[name].lane is lane}
    if lane is Lane.FAST:
        dims += clocks.active_reasons(why)
    if lane is Lane.STATIC:
        dims += clocks.supported_reasons(why)
    return values, tuple(dims)


@functools.cache  # there are few roles
def modes_of(roles: tuple[str, ...]) -> Modes:
    """Return the modes of a device in these roles."""
    told = frozenset([Role(role) for role in roles])
    return Modes(Role.MIG_PARENT in told, Role.VGPU_GUEST in told, told)


def cuda_version(number: protocol.Value) -> Value | None:
    """Turn NVML's 13000 into `13.0` (major times 1000 plus minor times 10)."""
    if not isinstance(number, int) or not 0 < number < 1_000_000:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"
