"""One device's texts to its readings."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from gpufleet.codecs.nvidia_smi.listing import ListedMig
from gpufleet.codecs.nvidia_smi.records import DeviceRecord, Log, lookup
from gpufleet.codecs.nvidia_smi.values import token
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.catalogue.metric import Role
from gpufleet.model.process import Process
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvidia_smi.mapping.processes import list_processes
from gpufleet.readers.nvidia_smi.mapping.rows import (
    ACTIVE,
    FAN,
    FAN_PATH,
    FAN_QUERY,
    HIDDEN_BY_MIG,
    MASK,
    MIG_DEVICES,
    MIG_PATHS,
    MIG_PROFILE,
    PATHS,
    PROCESSES,
    QUERIES,
    REASON_PATHS,
    SUMS,
    VGPU_INSTANCES,
    VGPU_MACHINE,
    VGPU_MACHINE_KIND,
    VGPU_PATHS,
)
from gpufleet.readers.nvidia_smi.mapping.tables import (
    BY_QUERY,
    SUPPORTED,
    TABLES,
    first_labels,
    map_table,
    query_of,
)
from gpufleet.readers.nvidia_smi.mapping.values import is_active, read, total

Reads = dict[str, Value | Absent]
Processes = tuple[dict[str, str], ...] | None
Readings = tuple[Reads, tuple[DimValue, ...]]

_COMPUTE = ("c", "c+g", "m+c")
"""Types of processes that hold a compute context, in lower case."""


class Modes(NamedTuple):
    """What changes the meaning of `N/A`, and which metrics a GPU has: MIG is on, a vGPU guest's, a vGPU host's."""

    mig: bool = False
    guest: bool = False
    host: bool = False

    def has(self, role: Role | None) -> bool:
        """Tell whether metrics of this role can be told of the GPU."""
        roles = {Role.MIG_PARENT: self.mig, Role.VGPU_GUEST: self.guest, Role.VGPU_HOST: self.host}
        return role is None or roles[role]


class Asked(NamedTuple):
    """What an output was asked for.

    Attributes:
        metrics: what it has to answer for; what it says nothing of is absent, the others are left out.
        missing: metrics of these that this version of nvidia-smi cannot be asked for.
    """

    metrics: frozenset[str]
    missing: frozenset[str] = frozenset()


WHOLE = Asked(frozenset(PATHS) | frozenset(SUMS) | frozenset(TABLES) | {PROCESSES, MIG_DEVICES, ACTIVE, FAN})
"""What `-q` and `-q -x` answer for."""

_BY_QUERY = {name: metric for metric, names in QUERIES.items() for name in names} | {FAN_QUERY: FAN}


def asked_by_columns(columns: Iterable[str]) -> Asked:
    """Return what a CSV output with these columns answers for."""
    asked = list(columns)
    metrics = {_BY_QUERY[column] for column in asked if column in _BY_QUERY}
    metrics.update(*(BY_QUERY.get(column, ()) for column in asked))
    return Asked(frozenset(metrics | ({ACTIVE} if MASK in metrics else set())))


def asked_by_log(log: Log) -> Asked:
    """Return what `-q`, `-q -x` or `vgpu -q` answers for, which tells of instances only."""
    paths = {path for device in log.devices for path in device.leaves}
    return Asked(frozenset({VGPU_INSTANCES})) if paths <= set(PATHS[VGPU_INSTANCES]) else WHOLE


def modes_of(record: DeviceRecord, before: Modes = Modes()) -> Modes:  # noqa: B008 - a tuple
    """Return the modes that a device tells, or those known before where it does not."""
    mig = record.fields.get("mig.mode.current") or _first(record.leaves, PATHS["gpu_mig_mode"])
    virtual = _first(record.leaves, PATHS["gpu_virtualization_mode"])
    return Modes(
        mig=before.mig if mig is None else mig.strip() == "Enabled",
        guest=before.guest if virtual is None else virtual.strip().upper() == "VGPU",
        host=bool(record.vgpus) or (before.host if virtual is None else virtual.strip().upper() == "HOST VGPU"),
    )


def map_gpu(record: DeviceRecord, lane: Lane, asked: Asked, modes: Modes) -> Readings:
    """Return a GPU's readings of one lane: every metric that was asked for, as a value or with its reason."""
    values: Reads = {}
    for name in asked.metrics:
        metric = CATALOGUE[name]
        if metric.lane is lane and not metric.dims and modes.has(metric.role):
            values[name] = _judged(metric, _reading(metric, record, asked), modes)
    dims: list[DimValue] = []
    if lane is Lane.FAST and ACTIVE in asked.metrics:
        dims += _active(record, values.get(MASK), modes)
    if lane is Lane.FAST and FAN in asked.metrics:
        dims.append(DimValue(FAN, ("0",), _judged(CATALOGUE[FAN], _fan(record, asked), modes)))
    for name in _tables(lane, asked):
        metric = CATALOGUE[name]
        dims += [
            DimValue(name, labels, _judged(metric, value, modes)) for labels, value in _table(metric, record, asked)
        ]
    return values, tuple(dims)


def _tables(lane: Lane, asked: Asked) -> list[str]:
    return [name for name in (*TABLES, SUPPORTED) if name in asked.metrics and CATALOGUE[name].lane is lane]


def _table(metric: Metric, record: DeviceRecord, asked: Asked) -> list[tuple[tuple[str, ...], Value | Absent]]:
    if metric.name in asked.missing:
        return [(first_labels(metric.name), Absent(Reason.NOT_IN_DRIVER, query_of(metric.name)))]
    return map_table(metric, record)


def absent_gpu(why: Absent, lane: Lane, asked: Asked, modes: Modes) -> Readings:
    """Return the readings of a GPU that gave nothing."""
    metrics = [CATALOGUE[name] for name in asked.metrics]
    values: Reads = {
        metric.name: why for metric in metrics if metric.lane is lane and not metric.dims and modes.has(metric.role)
    }
    dims: list[DimValue] = []
    if lane is Lane.FAST and ACTIVE in asked.metrics:
        dims += [DimValue(ACTIVE, (name,), why) for name, _ in CLOCK_EVENT_REASONS]
    if lane is Lane.FAST and FAN in asked.metrics:
        dims.append(DimValue(FAN, ("0",), why))
    dims += [DimValue(name, first_labels(name), why) for name in _tables(lane, asked)]
    return values, tuple(dims)


def map_mig(record: DeviceRecord, parent: DeviceRecord, lane: Lane, listed: ListedMig | None) -> Reads:
    """Return a MIG device's readings of one lane; its profile is known where a list tells it."""
    values = _by_paths(record, MIG_PATHS, lane)
    if lane is Lane.FAST:
        values[PROCESSES] = _processes(_of_instance(parent.processes, record), parent)
        values[MIG_PROFILE] = Absent(Reason.NOT_REPORTED, "-L") if listed is None else listed.profile
    if lane is Lane.STATIC:
        name = _first(parent.leaves, PATHS["gpu_name"]) or parent.fields.get("name")
        known = name is not None and token(name) is None and listed is not None
        values["gpu_name"] = f"{name} MIG {listed.profile}" if known and listed else Absent(Reason.NOT_REPORTED, "-L")
    return values


def map_vgpu(record: DeviceRecord, lane: Lane) -> Reads:
    """Return a vGPU instance's readings of one lane, as its host sees it."""
    values = _by_paths(record, VGPU_PATHS, lane)
    machine = values.get(VGPU_MACHINE)
    if lane is Lane.FAST and isinstance(machine, str):
        values[VGPU_MACHINE] = machine.lower()
        values[VGPU_MACHINE_KIND] = "uuid"
    return values


def _by_paths(record: DeviceRecord, table: Mapping[str, tuple[str, ...]], lane: Lane) -> Reads:
    values: Reads = {}
    for name, paths in table.items():
        metric = CATALOGUE[name]
        if metric.lane is lane:
            found = _of_paths(metric, record.leaves, paths)
            values[name] = Absent(Reason.NOT_REPORTED, paths[0]) if found is None else found
    return values


def _reading(metric: Metric, record: DeviceRecord, asked: Asked) -> Value | Absent:
    """Return what the output says: CSV first, which prints more of some (ECC totals, the mask), then paths."""
    if metric.name in asked.missing:
        return Absent(Reason.NOT_IN_DRIVER, QUERIES[metric.name][0])
    if metric.name == MIG_DEVICES:  # a table of GPUs says nothing of them
        return len(record.mig) if record.leaves else Absent(Reason.NOT_REPORTED, "mig_devices")
    if metric.name == PROCESSES:
        return _processes(record.processes, record)
    for query in QUERIES.get(metric.name, ()):
        if query in record.fields:
            return read(metric, record.fields[query], query)
    for parts in SUMS.get(metric.name, ()):
        found = {path: text for path in parts if (text := lookup(record.leaves, path)) is not None}
        if len(found) == len(parts):
            return total(metric, found)
    paths = PATHS.get(metric.name, ())
    label = (paths or QUERIES.get(metric.name, ("",)))[0]
    found_value = _of_paths(metric, record.leaves, paths)
    return Absent(Reason.NOT_REPORTED, label) if found_value is None else found_value


def _of_paths(metric: Metric, leaves: Mapping[str, str], paths: Collection[str]) -> Value | Absent | None:
    """Return the first value among the paths, else the first absence, or None if none of them is there."""
    absent: Absent | None = None
    for path in paths:
        text = lookup(leaves, path)
        if text is None:
            continue
        value = read(metric, text, path)
        if not isinstance(value, Absent):
            return value
        absent = absent or value
    return absent


def processes_of(gpu: DeviceRecord, mig: DeviceRecord | None = None) -> tuple[Process, ...]:
    """Return who uses a GPU, or a MIG device of it; nobody where it lists none."""
    listed = gpu.processes if mig is None else _of_instance(gpu.processes, mig)
    return list_processes(listed or ())


def _of_instance(processes: Processes, mig: DeviceRecord) -> Processes:
    ids = ("gpu_instance_id", "compute_instance_id")
    if processes is None:
        return None
    return tuple(one for one in processes if all(one.get(name) == mig.leaves.get(name) for name in ids))


def _processes(processes: Processes, record: DeviceRecord) -> Value | Absent:
    """Count them; a device that lists none says `None` or leaves the list empty."""
    if processes is not None:
        if any("type" not in process for process in processes):
            return Absent(Reason.NOT_REPORTED, "processes")  # cut off within one
        return sum(process["type"].strip().lower() in _COMPUTE for process in processes)
    text = record.leaves.get("processes")
    if text is None:
        return Absent(Reason.NOT_REPORTED, "processes")
    if text.strip().lower() in ("", "none"):
        return 0
    return Absent(token(text) or Reason.INVALID_VALUE, "processes")


def _fan(record: DeviceRecord, asked: Asked) -> Value | Absent:
    """Return the one speed that nvidia-smi prints, however many fans there are."""
    if FAN in asked.missing:
        return Absent(Reason.NOT_IN_DRIVER, FAN_QUERY)
    metric = CATALOGUE[FAN]
    if FAN_QUERY in record.fields:
        return read(metric, record.fields[FAN_QUERY], FAN_QUERY)
    found = _of_paths(metric, record.leaves, (FAN_PATH,))
    return Absent(Reason.NOT_REPORTED, FAN_PATH) if found is None else found


def _active(record: DeviceRecord, mask: Value | Absent | None, modes: Modes) -> list[DimValue]:
    """Return 0 or 1 a reason: by the mask of CSV, else by the words of XML and text."""
    if isinstance(mask, int):
        return [DimValue(ACTIVE, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS]
    metric = CATALOGUE[ACTIVE]
    dims: list[DimValue] = []
    for name, _ in CLOCK_EVENT_REASONS:
        path, text = REASON_PATHS[name][0], _first(record.leaves, REASON_PATHS[name])
        if text is not None:
            value = _word(metric, text, path)
        else:
            value = mask if isinstance(mask, Absent) else Absent(Reason.NOT_REPORTED, path)
        dims.append(DimValue(ACTIVE, (name,), _judged(metric, value, modes)))
    return dims


def _word(metric: Metric, text: str, label: str) -> Value | Absent:
    active = is_active(text)
    return read(metric, text, label) if active is None else active


def _judged(metric: Metric, value: Value | Absent, modes: Modes) -> Value | Absent:
    """Say what `N/A` means in this mode; what is not defined in MIG mode is absent whatever was printed."""
    if modes.mig and _by_nature(metric, Reason.NOT_IN_MIG_MODE):
        return Absent(Reason.NOT_IN_MIG_MODE)
    unsupported = isinstance(value, Absent) and value.reason is Reason.NOT_SUPPORTED
    if unsupported and modes.mig and metric.name in HIDDEN_BY_MIG:
        return Absent(Reason.NOT_IN_MIG_MODE)
    if unsupported and modes.guest and _by_nature(metric, Reason.NOT_IN_GUEST):
        assert isinstance(value, Absent)
        return Absent(Reason.NOT_IN_GUEST, value.detail)
    return value


def _by_nature(metric: Metric, reason: Reason) -> bool:
    return any(case.reason is reason for case in metric.absent_when)


def _first(leaves: Mapping[str, str], paths: Iterable[str]) -> str | None:
    return next((text for path in paths if (text := lookup(leaves, path)) is not None), None)
