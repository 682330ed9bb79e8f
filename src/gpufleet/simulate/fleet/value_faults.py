"""Faults of the simulated fleet that change readings: a table from kind to changed readings. Pure.

A fault changes readings that a device has; a reading that is absent on a healthy device stays absent.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpufleet.fleet.device_events import FAILURES, LOSS_EVENTS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.catalogue.metric import MetricKind, ValueType
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import DimValue, Value
from gpufleet.model.view import View
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault

ReadingValues = dict[str, Value | Absent]


class Times(NamedTuple):
    """Multiple of another reading of the same sample."""

    metric: str
    factor: float


class ValueFault(NamedTuple):
    """Row of the table.

    Attributes:
        readings: changed readings by metric; None for one that is no longer given.
        dims: changed values with dimensions, by metric and labels.
        frozen: readings that repeat their values from the start of the fault.
        restarted: counters that count from the start of the fault.
        began: kind of the event at its start, or None. `gpu_recovered` follows a failure at its end.
        attributes: attributes of the first event.
    """

    readings: Mapping[str, Value | Absent | Times | None] = {}
    dims: Mapping[tuple[str, tuple[str, ...]], Value] = {}
    frozen: frozenset[str] = frozenset()
    restarted: frozenset[str] = frozenset()
    began: EventKind | None = None
    attributes: Mapping[str, str] = {}


RETIRED_PAGES: Mapping[tuple[str, tuple[str, ...]], Value] = {
    ("gpu_retired_pages", ("single_bit",)): 0,
    ("gpu_retired_pages", ("double_bit",)): 0,
}
"""Retired pages of a healthy GPU. Only GPUs with a fault of that kind report them."""

FABRIC_MANAGER = "nvidia-fabricmanager"

_K = FaultKind
_FAST = frozenset(
    metric.name
    for metric in CATALOGUE.values()
    if Subject.GPU in metric.subjects and metric.lane is Lane.FAST and metric.kind is not MetricKind.STATE
)
_UTILIZATION, _ENERGY = "gpu_utilization_ratio", "gpu_energy_joules_total"
_SECOND_READER_UNIT = 1 / 2**20


def _power(factor: float) -> dict[str, Value | Absent | Times]:
    """Return readings of power as a share of the power limit."""
    share = Times("gpu_power_limit_watts", factor)
    return {"gpu_power_watts": share, "gpu_power_instant_watts": share}


VALUE_FAULTS: Mapping[FaultKind, ValueFault] = {
    # values
    _K.FROZEN_VALUES: ValueFault(frozen=_FAST),
    _K.FROZEN_ENERGY: ValueFault(frozen=frozenset({_ENERGY})),
    _K.COUNTER_RESET: ValueFault(restarted=frozenset({_ENERGY})),
    _K.INVALID_VALUE: ValueFault({"gpu_memory_temperature_celsius": Absent(Reason.INVALID_VALUE, "2147483632")}),
    _K.MEMORY_ABOVE_TOTAL: ValueFault({"gpu_memory_used_bytes": Times("gpu_memory_total_bytes", 1.5)}),
    _K.POWER_ABOVE_LIMIT: ValueFault(_power(2.0)),
    _K.CLOCK_ABOVE_MAXIMUM: ValueFault({"gpu_sm_clock_hertz": 6_000_000_000}),
    _K.CORE_FAILED: ValueFault(
        {"gpu_power_watts": Absent(Reason.DRIVER_ERROR, "nvmlDeviceGetPowerUsage"), "gpu_state": "error"},
        began=EventKind.GPU_FAILED),
    _K.READING_DROPPED: ValueFault({"gpu_power_watts": None}),
    _K.ZERO_UTILIZATION: ValueFault({_UTILIZATION: 0.0}),
    _K.NO_UTILIZATION: ValueFault({_UTILIZATION: 0.0, **_power(0.9)}),
    _K.LOW_POWER: ValueFault({_UTILIZATION: 1.0, **_power(0.25)}),
    # use
    _K.HELD_PARKED: ValueFault({"gpu_memory_used_bytes": Times("gpu_memory_total_bytes", 0.5)}),
    _K.USED_UNHELD: ValueFault({_UTILIZATION: 0.6, **_power(0.5), "gpu_compute_processes": 1}),
    # state of the GPU
    _K.RECOVERY_ACTION: ValueFault(
        {"gpu_recovery_action": "drain_and_reset"}, began=EventKind.RECOVERY_ACTION_CHANGED,
        attributes={"from": "none", "to": "drain_and_reset"}),
    _K.RESET_REQUIRED: ValueFault(began=EventKind.GPU_RESET_REQUIRED),
    _K.GPU_UNREADABLE: ValueFault(began=EventKind.GPU_FAILED),
    _K.ROW_REMAP_FAILED: ValueFault({"gpu_row_remap_failed": 1}, began=EventKind.ROW_REMAP_FAILED),
    _K.ROW_REMAP_PENDING: ValueFault({"gpu_row_remap_pending": 1}, began=EventKind.ROW_REMAP_PENDING),
    _K.REPAIR_PENDING: ValueFault({"gpu_channel_repair_pending": 1}),
    _K.UNREPAIRABLE_MEMORY: ValueFault({"gpu_unrepairable_memory": 1}),
    _K.RETIRED_PAGES: ValueFault(dims={("gpu_retired_pages", ("double_bit",)): 12}),
    # links
    _K.NVLINK_DOWN: ValueFault({"gpu_nvlinks_active": Times("gpu_nvlinks", 0.75)}),
    _K.FABRIC_UNHEALTHY: ValueFault({"gpu_fabric_health_status": "unhealthy"}),
    _K.PCIE_DEGRADED: ValueFault({"gpu_pcie_link_width": 8}),
    # drift
    _K.VBIOS_DRIFT: ValueFault({"gpu_vbios_version": "90.00.00.00.01"}),
    _K.MIG_MODE_PENDING: ValueFault({"gpu_mig_mode_pending": "enabled"}),
    _K.DRIVER_DRIFT: ValueFault({"nvidia_driver_version": "570.172.08", "nvidia_library_version": "570.172.08"}),
    # machine
    _K.DRIVER_BROKEN: ValueFault(
        {"nvidia_driver_state": "mismatch", "nvidia_devices": Absent(Reason.DRIVER_MISMATCH)}),
    _K.FABRIC_MANAGER_STOPPED: ValueFault(dims={("host_service_state", (FABRIC_MANAGER,)): "not_running"}),
    _K.XID_BLIND: ValueFault({"gpu_driver_events_watched": 0}),
}  # fmt: skip
"""Faults that change readings of the driver's or the host's own reader."""

SECOND_READER: Mapping[FaultKind, ValueFault] = {
    _K.UNIT_MISMATCH: ValueFault(
        {name: Times(name, _SECOND_READER_UNIT) for name in ("gpu_memory_total_bytes", "gpu_memory_used_bytes")}
    ),
}
"""Faults that change readings of a second reader, which the GPU has only because of them."""


def change_readings(
    readings: ReadingValues,
    faults: Iterable[FleetFault],
    before: Callable[[int], ReadingValues],
    table: Mapping[FaultKind, ValueFault] = VALUE_FAULTS,
) -> ReadingValues:
    """Return the readings of a sample as faults change them.

    Args:
        readings: of the healthy device.
        faults: present faults; kinds without a row change nothing.
        before: returns the readings of the healthy device at an instant, nanoseconds since 1970.
        table: rows of the kinds.
    """
    changed = readings
    for fault in faults:
        row = table.get(fault.kind)
        if row is None:
            continue
        changed = dict(changed)
        repeated = (row.frozen | row.restarted) & readings.keys()
        first = before(fault.begin) if repeated else {}
        for name in repeated:
            changed[name] = first[name] if name in row.frozen else _since(readings[name], first[name])
        for name, change in row.readings.items():
            if name not in readings or isinstance(readings[name], Absent):
                continue
            if change is None:
                changed.pop(name, None)
            else:
                changed[name] = _value(name, change, readings)
    return changed


def change_dims(
    dims: Mapping[tuple[str, tuple[str, ...]], Value], faults: Iterable[FleetFault]
) -> tuple[DimValue, ...]:
    """Return values with dimensions of a sample as faults change them."""
    changed = dict(dims)
    for fault in faults:
        row = VALUE_FAULTS.get(fault.kind)
        if row is not None:
            changed |= {key: value for key, value in row.dims.items() if key in dims}
    return tuple(DimValue(metric, labels, value) for (metric, labels), value in changed.items())


def value_fault_events(view: View, fault: FleetFault) -> Iterable[Event]:
    """Return the events at the start and the end of a fault of the table."""
    row = VALUE_FAULTS.get(fault.kind)
    if row is not None and row.began is not None:
        yield Event(view=view, kind=row.began, at=fault.begin, attributes=dict(row.attributes))
    if row is not None and row.began is not None and row.began in FAILURES:
        code = 1 if row.began in LOSS_EVENTS else 0
        yield Event(view=view, kind=EventKind.GPU_RECOVERED, code=code, at=fault.end)


def _value(name: str, change: Value | Absent | Times, readings: ReadingValues) -> Value | Absent:
    if not isinstance(change, Times):
        return change
    base = readings[change.metric]
    if isinstance(base, Absent | str):
        return base
    product = base * change.factor
    return int(product) if CATALOGUE[name].type is ValueType.INT else round(product, 3)


def _since(now: Value | Absent, first: Value | Absent) -> Value | Absent:
    """Return a counter that restarted at its value `first`; after a boot it is smaller and starts anyway."""
    if isinstance(now, Absent | str) or isinstance(first, Absent | str) or now < first:
        return now
    return round(now - first, 3)
