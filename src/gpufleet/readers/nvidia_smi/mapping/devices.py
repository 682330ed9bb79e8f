"""Conversion of a device's texts to its readings."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from gpufleet.codecs.nvidia_smi.listing import ListedMig
from gpufleet.codecs.nvidia_smi.records import DeviceRecord, Log, lookup
from gpufleet.fleet.board import drop_defaults, drop_unproven_uses, in_mig_mode, is_vgpu_guest, unproven_uses
from gpufleet.fleet.ecc import ecc_count
from gpufleet.model.absence import Absent, Reason, worst_absence
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.catalogue.metric import GpuRole
from gpufleet.model.device_state import STATE_OF_REASON, is_failure
from gpufleet.model.driver_texts import text_reason
from gpufleet.model.process import Process
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvidia_smi.mapping.processes import list_processes
from gpufleet.readers.nvidia_smi.mapping.rows import (
    ACTIVE,
    ECC_QUERY,
    FAN,
    FAN_PATH,
    FAN_QUERY,
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
    VGPU_NAMES,
    VGPU_PATHS,
)
from gpufleet.readers.nvidia_smi.mapping.tables import (
    BY_QUERY,
    SUPPORTED,
    TABLES,
    absence_labels,
    map_mig_table,
    map_table,
    query_of,
)
from gpufleet.readers.nvidia_smi.mapping.values import is_active, read_text, sum_counts

_Mode = TypeVar("_Mode", bool, bool | None)

MetricValues = dict[str, Value | Absent]
Processes = tuple[dict[str, str], ...] | None
Readings = tuple[MetricValues, tuple[DimValue, ...]]

_CHOSEN = frozenset(name for name, paths in VGPU_PATHS.items() if not VGPU_NAMES.isdisjoint(paths))

_COMPUTE = ("c", "c+g", "m+c")
"""Process types with a compute context, in lower case."""


class GpuModes(NamedTuple):
    """Modes of a GPU: they determine its metrics, and the meaning of `N/A` and 0.

    Attributes:
        mig, guest, host: whether it is divided into MIG devices, is a vGPU guest, is a vGPU host.
        ecc: whether it counts memory errors; absent if no output shows it.
    """

    mig: bool = False
    guest: bool = False
    host: bool = False
    ecc: bool | Absent = True

    def has(self, role: GpuRole | None) -> bool:
        """Return whether the GPU has metrics of this role."""
        roles = {GpuRole.MIG_PARENT: self.mig, GpuRole.VGPU_GUEST: self.guest, GpuRole.VGPU_HOST: self.host}
        return role is None or roles[role]


class RequestedMetrics(NamedTuple):
    """Metrics that an output has to provide.

    Attributes:
        metrics: requested metrics; absent if the output lacks them. Other metrics are left out.
        missing: requested metrics that this version of nvidia-smi does not support.
    """

    metrics: frozenset[str]
    missing: frozenset[str] = frozenset()


ALL_METRICS = RequestedMetrics(
    frozenset(PATHS) | frozenset(SUMS) | frozenset(TABLES) | {PROCESSES, MIG_DEVICES, ACTIVE, FAN}
)
"""Metrics of `-q` and `-q -x`."""

_BY_QUERY = {name: metric for metric, names in QUERIES.items() for name in names} | {FAN_QUERY: FAN}


def metrics_of_columns(columns: Iterable[str]) -> RequestedMetrics:
    """Return the metrics of a CSV output with these columns."""
    names = list(columns)
    metrics = {_BY_QUERY[column] for column in names if column in _BY_QUERY}
    metrics.update(*(BY_QUERY.get(column, ()) for column in names))
    return RequestedMetrics(frozenset(metrics | ({ACTIVE} if MASK in metrics else set())))


def metrics_of_log(log: Log) -> RequestedMetrics:
    """Return the metrics of `-q` or `-q -x`, or of `vgpu -q`, which has vGPU instances only."""
    paths = {path for device in log.devices for path in device.leaves}
    return RequestedMetrics(frozenset({VGPU_INSTANCES})) if paths <= set(PATHS[VGPU_INSTANCES]) else ALL_METRICS


def modes_of(record: DeviceRecord, before: GpuModes | None = None) -> GpuModes:
    """Return the modes of a device; a mode that is not printed keeps its previous value.

    CSV has ECC counts of 0 for boards without ECC. If no output showed the mode, a count above zero or a total proves
    ECC: see `ecc.board_ecc_mode`.
    """
    before = before or GpuModes(ecc=Absent(Reason.NOT_REPORTED, ECC_QUERY))
    mig = record.fields.get("mig.mode.current") or _first_text(record.leaves, PATHS["gpu_mig_mode"])
    virtual = _printed_mode(_first_text(record.leaves, PATHS["gpu_virtualization_mode"]))
    ecc = record.fields.get(ECC_QUERY) or _first_text(record.leaves, PATHS["gpu_ecc_mode"])
    return GpuModes(
        mig=_is_enabled(mig, before.mig),
        guest=before.guest if virtual is None else virtual == "vgpu",
        host=bool(record.vgpus) or (before.host if virtual is None else virtual == "host vgpu"),
        ecc=_counts_errors(record, ecc, before.ecc),
    )


def _counts_errors(record: DeviceRecord, text: str | None, before: bool | Absent) -> bool | Absent:
    """Return whether a device counts memory errors, by its printed mode or by a count; absent if neither shows it."""
    known = _is_enabled(text, None if isinstance(before, Absent) else before)
    if known is not None:
        return known
    if _has_errors(record) or (text is None and _has_totals(record)):
        return True
    reason = None if text is None else text_reason(text)
    return before if reason is None else Absent(reason, ECC_QUERY)


def map_gpu(record: DeviceRecord, lane: Lane, requested: RequestedMetrics, modes: GpuModes) -> Readings:
    """Return a GPU's readings of one lane: every requested metric, as a value or an absence."""
    values: MetricValues = {}
    for name in requested.metrics:
        metric = CATALOGUE[name]
        if metric.lane is lane and not metric.dims and modes.has(metric.role):
            values[name] = _in_mode(metric, _reading(metric, record, requested), modes)
    dims: list[DimValue] = []
    if lane is Lane.FAST and ACTIVE in requested.metrics:
        dims += _active_reasons(record, values.get(MASK), modes)
    if lane is Lane.FAST and FAN in requested.metrics:
        dims.append(DimValue(FAN, ("0",), _in_mode(CATALOGUE[FAN], _fan(record, requested), modes)))
    for name in _tables(lane, requested):
        metric = CATALOGUE[name]
        table = [(labels, _in_mode(metric, value, modes)) for labels, value in _table(metric, record, requested)]
        if modes.ecc is False and all(_is_unsupported(value) for _, value in table):
            table = [(absence_labels(name), table[0][1])]
        dims += [DimValue(name, labels, value) for labels, value in table]
    product = _product_name(record)
    is_guest = modes.guest or is_vgpu_guest(product, None)
    return values, drop_defaults(values, dims, product, is_guest=is_guest)


def _tables(lane: Lane, requested: RequestedMetrics) -> list[str]:
    return [name for name in (*TABLES, SUPPORTED) if name in requested.metrics and CATALOGUE[name].lane is lane]


def _table(
    metric: Metric, record: DeviceRecord, requested: RequestedMetrics
) -> list[tuple[tuple[str, ...], Value | Absent]]:
    if metric.name in requested.missing:
        return [(absence_labels(metric.name), Absent(Reason.NOT_IN_DRIVER, query_of(metric.name)))]
    return map_table(metric, record)


def absent_gpu(why: Absent, lane: Lane, requested: RequestedMetrics, modes: GpuModes) -> Readings:
    """Return the readings of a GPU that cannot be read."""
    metrics = [CATALOGUE[name] for name in requested.metrics]
    values: MetricValues = {
        metric.name: why for metric in metrics if metric.lane is lane and not metric.dims and modes.has(metric.role)
    }
    dims: list[DimValue] = []
    if lane is Lane.FAST and ACTIVE in requested.metrics:
        dims += [DimValue(ACTIVE, (name,), why) for name, _ in CLOCK_EVENT_REASONS]
    if lane is Lane.FAST and FAN in requested.metrics:
        dims.append(DimValue(FAN, ("0",), why))
    dims += [DimValue(name, absence_labels(name), why) for name in _tables(lane, requested)]
    return values, tuple(dims)


def map_mig(record: DeviceRecord, parent: DeviceRecord, lane: Lane, listed: ListedMig | None) -> MetricValues:
    """Return a MIG device's readings of one lane; its profile is known from `-L` only."""
    values = _values_of_paths(record, MIG_PATHS, lane)
    if lane is Lane.FAST:
        values[PROCESSES] = _count_processes(_processes_of_instance(parent.processes, record), parent)
        values[MIG_PROFILE] = Absent(Reason.NOT_REPORTED, "-L") if listed is None else listed.profile
    if lane is Lane.STATIC:
        name = _product_name(parent)
        known = name is not None and text_reason(name) is None and listed is not None
        values["gpu_name"] = f"{name} MIG {listed.profile}" if known and listed else Absent(Reason.NOT_REPORTED, "-L")
    return values


def map_mig_dims(record: DeviceRecord, parent: DeviceRecord, lane: Lane) -> tuple[DimValue, ...]:
    """Return a MIG device's readings with dimensions of one lane; without ECC it counts no errors."""
    ecc = modes_of(parent).ecc
    return tuple(
        msgspec.structs.replace(dim, value=_in_ecc_mode(dim.metric, dim.value, ecc))
        for dim in map_mig_table(lane, record)
    )


def map_vgpu(record: DeviceRecord, parent: DeviceRecord, lane: Lane) -> MetricValues:
    """Return a vGPU instance's readings of one lane, as seen by its host.

    A text that the guest or a hypervisor chooses is no evidence about the device.
    """
    values = _values_of_paths(record, VGPU_PATHS, lane)
    for name in _CHOSEN.intersection(values):
        value = values[name]
        if isinstance(value, Absent) and value.reason in STATE_OF_REASON:
            values[name] = Absent(Reason.INVALID_VALUE, value.detail)
    machine = values.get(VGPU_MACHINE)
    if lane is Lane.FAST and isinstance(machine, str):
        values[VGPU_MACHINE] = machine.lower()
        values[VGPU_MACHINE_KIND] = "uuid"
    product = _product_name(parent) or record.leaves.get(VGPU_PATHS["vgpu_type"][0])
    drop_unproven_uses(values, unproven_uses(product))
    return values


def _product_name(record: DeviceRecord) -> str | None:
    return _first_text(record.leaves, PATHS["gpu_name"]) or record.fields.get("name")


def _values_of_paths(record: DeviceRecord, table: Mapping[str, tuple[str, ...]], lane: Lane) -> MetricValues:
    values: MetricValues = {}
    for name, paths in table.items():
        metric = CATALOGUE[name]
        if metric.lane is lane:
            found = _value_of_paths(metric, record.leaves, paths)
            values[name] = Absent(Reason.NOT_REPORTED, paths[0]) if found is None else found
    return values


def _reading(metric: Metric, record: DeviceRecord, requested: RequestedMetrics) -> Value | Absent:
    """Return the reading of a metric: from CSV first, which has more (ECC totals, the mask), then from paths."""
    if metric.name in requested.missing:
        return Absent(Reason.NOT_IN_DRIVER, QUERIES[metric.name][0])
    if metric.name == MIG_DEVICES:  # CSV has no MIG devices
        return len(record.mig) if record.leaves else Absent(Reason.NOT_REPORTED, "mig_devices")
    if metric.name == PROCESSES:
        return _count_processes(record.processes, record)
    for query in QUERIES.get(metric.name, ()):
        if query in record.fields:
            return read_text(metric, record.fields[query], query)
    for parts in SUMS.get(metric.name, ()):
        found = {path: text for path in parts if (text := lookup(record.leaves, path)) is not None}
        if len(found) == len(parts):
            return sum_counts(metric, found)
    paths = PATHS.get(metric.name, ())
    label = (paths or QUERIES.get(metric.name, ("",)))[0]
    found_value = _value_of_paths(metric, record.leaves, paths)
    return Absent(Reason.NOT_REPORTED, label) if found_value is None else found_value


def _value_of_paths(metric: Metric, leaves: Mapping[str, str], paths: Collection[str]) -> Value | Absent | None:
    """Return the first value among the paths, otherwise the worst absence, or None if no path exists.

    A later path replaces one that the board does not have, not one that failed.
    """
    absent: list[Absent] = []
    for path in paths:
        text = lookup(leaves, path)
        if text is None:
            continue
        value = read_text(metric, text, path)
        if isinstance(value, Absent):
            absent.append(value)
        elif not any(is_failure(one.reason) for one in absent):
            return value
    return worst_absence(absent) if absent else None


def processes_of(gpu: DeviceRecord, mig: DeviceRecord | None = None) -> tuple[Process, ...]:
    """Return the processes of a GPU, or of one of its MIG devices; empty if none are listed."""
    listed = gpu.processes if mig is None else _processes_of_instance(gpu.processes, mig)
    return list_processes(listed or ())


def _processes_of_instance(processes: Processes, mig: DeviceRecord) -> Processes:
    ids = ("gpu_instance_id", "compute_instance_id")
    if processes is None:
        return None
    return tuple(process for process in processes if all(process.get(name) == mig.leaves.get(name) for name in ids))


def _count_processes(processes: Processes, record: DeviceRecord) -> Value | Absent:
    """Count compute processes; a device without processes prints `None` or an empty list."""
    if processes is not None:
        if any("type" not in process for process in processes):
            return Absent(Reason.NOT_REPORTED, "processes")  # truncated within a process
        return sum(process["type"].strip().lower() in _COMPUTE for process in processes)
    text = record.leaves.get("processes")
    if text is None:
        return Absent(Reason.NOT_REPORTED, "processes")
    if text.strip().lower() in ("", "none"):
        return 0
    return Absent(text_reason(text) or Reason.INVALID_VALUE, "processes")


def _fan(record: DeviceRecord, requested: RequestedMetrics) -> Value | Absent:
    """Return the fan speed; nvidia-smi prints one, independent of the number of fans."""
    if FAN in requested.missing:
        return Absent(Reason.NOT_IN_DRIVER, FAN_QUERY)
    metric = CATALOGUE[FAN]
    if FAN_QUERY in record.fields:
        return read_text(metric, record.fields[FAN_QUERY], FAN_QUERY)
    found = _value_of_paths(metric, record.leaves, (FAN_PATH,))
    return Absent(Reason.NOT_REPORTED, FAN_PATH) if found is None else found


def _active_reasons(record: DeviceRecord, mask: Value | Absent | None, modes: GpuModes) -> list[DimValue]:
    """Return 0 or 1 for each reason: from the CSV mask, otherwise from the states in XML and text."""
    if isinstance(mask, int):
        return [DimValue(ACTIVE, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS]
    metric = CATALOGUE[ACTIVE]
    dims: list[DimValue] = []
    for name, _ in CLOCK_EVENT_REASONS:
        path, text = REASON_PATHS[name][0], _first_text(record.leaves, REASON_PATHS[name])
        if text is not None:
            value = _state_or_number(metric, text, path)
        else:
            value = mask if isinstance(mask, Absent) else Absent(Reason.NOT_REPORTED, path)
        dims.append(DimValue(ACTIVE, (name,), _in_mode(metric, value, modes)))
    return dims


def _state_or_number(metric: Metric, text: str, label: str) -> Value | Absent:
    active = is_active(text)
    return read_text(metric, text, label) if active is None else active


def _in_mode(metric: Metric, value: Value | Absent, modes: GpuModes) -> Value | Absent:
    """Apply the modes to a reading.

    `N/A` gets the reason of the mode. A metric that is undefined in MIG mode is absent, even if a value was printed.
    """
    if modes.mig and _can_be_absent(metric, Reason.NOT_IN_MIG_MODE):
        return Absent(Reason.NOT_IN_MIG_MODE)
    value = _in_ecc_mode(metric.name, value, modes.ecc)
    if modes.mig:
        value = in_mig_mode(metric.name, value)
    if _is_unsupported(value) and modes.guest and _can_be_absent(metric, Reason.NOT_IN_GUEST):
        assert isinstance(value, Absent)
        return Absent(Reason.NOT_IN_GUEST, value.detail)
    return value


def _in_ecc_mode(metric: str, value: Value | Absent, ecc: bool | Absent) -> Value | Absent:
    """Return a reading as it counts in the ECC mode."""
    return ecc_count(metric, value, ecc if isinstance(ecc, Absent) else ("disabled", "enabled")[ecc], ECC_QUERY)


def _is_unsupported(value: Value | Absent) -> bool:
    return isinstance(value, Absent) and value.reason is Reason.NOT_SUPPORTED


def _has_errors(record: DeviceRecord) -> bool:
    """Return whether a device has a count of ECC errors above zero."""
    counts = [text for _, text in _error_columns(record)]
    counts += [text for path, text in record.leaves.items() if path.startswith("ecc_errors/")]
    return any(text.strip().isdecimal() and text.strip("0 ") for text in counts)


def _has_totals(record: DeviceRecord) -> bool:
    """Return whether a CSV row has a total of ECC errors."""
    return any(name.endswith(".total") and text.strip().isdecimal() for name, text in _error_columns(record))


def _error_columns(record: DeviceRecord) -> list[tuple[str, str]]:
    return [(name, text) for name, text in record.fields.items() if name.startswith("ecc.errors.")]


def _is_enabled(text: str | None, before: _Mode) -> bool | _Mode:
    """Return whether a printed mode is enabled; a mode that is not printed or cannot be read does not change."""
    mode = _printed_mode(text)
    return before if mode is None else mode == "enabled"


def _printed_mode(text: str | None) -> str | None:
    """Return a printed mode in lower case; None if it is not printed, or an error in its place."""
    is_known = text is not None and text_reason(text) in (None, Reason.NOT_SUPPORTED)
    return text.strip().lower() if text is not None and is_known else None


def _can_be_absent(metric: Metric, reason: Reason) -> bool:
    return any(case.reason is reason for case in metric.absent_when)


def _first_text(leaves: Mapping[str, str], paths: Iterable[str]) -> str | None:
    return next((text for path in paths if (text := lookup(leaves, path)) is not None), None)
