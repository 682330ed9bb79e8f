"""From the driver's answers to the catalogue: one file a group, as in `calls`."""

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Lane, Role
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import CALLS, INSTANCE_CALLS
from gpufleet.readers.nvml.calls.call import Call
from gpufleet.readers.nvml.mapping import clocks, core, ecc, engines, memory, mig, pcie, power, processes, vgpu
from gpufleet.readers.nvml.mapping.row import NO_MODES, Modes, Row, read, read_every, state
from gpufleet.readers.nvml.parse import part_of
from gpufleet.readers.nvml.protocol import Answer, DeviceRecord, InstanceRecord

_GUEST, _VGPU_HOST = 2, 3
"""nvmlGpuVirtualizationMode_t: this process runs inside a vGPU guest; the GPU is shared out as vGPUs."""

Readings = tuple[dict[str, Value | Absent], tuple[DimValue, ...]]
"""Values by metric, and those with dimensions."""

ROWS: tuple[Row, ...] = (
    *engines.ROWS,
    *memory.ROWS,
    *power.ROWS,
    *clocks.ROWS,
    *ecc.ROWS,
    *pcie.ROWS,
    *processes.ROWS,
    *core.ROWS,
)
"""Readings of a GPU that come from one call; `gpu_state`, `gpu_pci_address` and the modes come from elsewhere."""

INSTANCE_ROWS: dict[str, tuple[Row, ...]] = {"mig": mig.ROWS, "vgpu": vgpu.ROWS}
"""Readings of an instance, by its kind."""

MIG_MODE, VIRTUALIZATION_MODE = CATALOGUE["gpu_mig_mode"], CATALOGUE["gpu_virtualization_mode"]


class _Lane:
    """The rows of one lane, with the position of each one's call among the answers."""

    def __init__(self, lane: Lane, rows: tuple[Row, ...], calls: tuple[Call, ...]) -> None:
        positions = {call.key: position for position, call in enumerate(calls)}
        mine = [(row, CATALOGUE[row.metric]) for row in rows if CATALOGUE[row.metric].lane is lane]
        located = [(row, metric, positions[row.call]) for row, metric in mine]
        self.plain = tuple([one for one in located if not one[1].dims])
        self.labelled = tuple([one for one in located if one[1].dims])

    def map(self, answers: tuple[Answer, ...], modes: Modes) -> tuple[dict[str, Value | Absent], list[DimValue]]:
        values: dict[str, Value | Absent] = {}
        dims: list[DimValue] = []
        for row, metric, position in self.plain:
            if metric.role is None or metric.role in modes.roles:
                values[metric.name] = read(row, metric, answers[position], modes)
        for row, metric, position in self.labelled:
            if metric.role is not None and metric.role not in modes.roles:
                continue
            if row.every:
                found = read_every(row, metric, answers[position], modes)
                dims += [DimValue(metric.name, labels, value) for labels, value in found]
            else:
                dims.append(DimValue(metric.name, row.labels, read(row, metric, answers[position], modes)))
        return values, dims

    def absent(self, why: Absent) -> tuple[dict[str, Value | Absent], list[DimValue]]:
        values: dict[str, Value | Absent] = {metric.name: why for _, metric, _ in self.plain if metric.role is None}
        dims = [
            DimValue(metric.name, ("0", *row.labels) if row.every else row.labels, why)
            for row, metric, _ in self.labelled
            if metric.role is None
        ]
        return values, dims


_LANES = {lane: _Lane(lane, ROWS, CALLS[lane]) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)}
_INSTANCE_LANES = {
    kind: {lane: _Lane(lane, rows, INSTANCE_CALLS[kind][lane]) for lane in _LANES}
    for kind, rows in INSTANCE_ROWS.items()
}
_FROM_ELSEWHERE = {"gpu_state", "gpu_pci_address", MIG_MODE.name, VIRTUALIZATION_MODE.name}


def map_device(record: DeviceRecord, lane: Lane) -> Readings:
    """Return the readings of a device that answered, without what is known of it from elsewhere."""
    modes = modes_of(record)
    values, dims = _LANES[lane].map(record.answers, modes)
    if lane is MIG_MODE.lane:
        values[MIG_MODE.name] = state(MIG_MODE, part_of(record.mig, 0), modes)
    if lane is VIRTUALIZATION_MODE.lane:
        values[VIRTUALIZATION_MODE.name] = state(VIRTUALIZATION_MODE, record.virtualization, modes)
    if lane is Lane.FAST:
        dims += clocks.active_reasons(values[clocks.MASK])
    return values, tuple(dims)


def map_instance(record: InstanceRecord, lane: Lane) -> Readings:
    """Return the readings of an instance that answered, without what is known of it from elsewhere."""
    values, dims = _INSTANCE_LANES[record.kind][lane].map(record.answers, NO_MODES)
    return values, tuple(dims)


def absent_device(why: Absent, lane: Lane) -> Readings:
    """Return the readings of a device that gave nothing: everything this reader answers for, absent."""
    values, dims = _LANES[lane].absent(why)
    values |= {name: why for name in _FROM_ELSEWHERE if CATALOGUE[name].lane is lane}
    if lane is Lane.FAST:
        dims += clocks.active_reasons(why)
    return values, tuple(dims)


def modes_of(record: DeviceRecord) -> Modes:
    """Return the modes that a device was in during a pass."""
    mig, mode = part_of(record.mig, 0).value == 1, record.virtualization.value
    roles = ((Role.MIG_PARENT, mig), (Role.VGPU_GUEST, mode == _GUEST), (Role.VGPU_HOST, mode == _VGPU_HOST))
    return Modes(mig, mode == _GUEST, frozenset([role for role, is_in in roles if is_in]))


def cuda_version(number: protocol.Value) -> Value | None:
    """Turn NVML's 13000 into `13.0` (major times 1000 plus minor times 10)."""
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) and number > 0 else None
