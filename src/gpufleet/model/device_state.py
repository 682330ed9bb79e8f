"""State of a GPU by the evidence of its readings: the only copy of the rule. Pure."""

from collections.abc import Iterable, Mapping

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import DimValue, Reading, Value

OK, LOST, RESET_REQUIRED, HUNG, UNREADABLE, ERROR = "ok", "lost", "reset_required", "hung", "unreadable", "error"
"""States of the metric `gpu_state`."""

PROCESS_COUNTS = frozenset({"gpu_compute_processes", "gpu_graphics_processes", "gpu_mps_processes"})
"""Numbers that are 0 also if nothing was measured."""

STATE_OF_REASON = {Reason.GPU_LOST: LOST, Reason.RESET_REQUIRED: RESET_REQUIRED}
"""Reasons that are about the whole device, worst first. One reading with such a reason is proof."""

WORST_FIRST = (LOST, RESET_REQUIRED, HUNG, UNREADABLE, ERROR, OK)
"""States in order of severity."""

_NO_EVIDENCE = frozenset(
    {
        *(Reason.NOT_REPORTED, Reason.STALE, Reason.NOT_COLLECTED),
        *(Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER, Reason.NOT_IN_GUEST, Reason.NOT_IN_MIG_MODE),
    }
)
"""Reasons of a reading that the source or the device does not have: they prove nothing about the device."""

CORE_READINGS = frozenset(
    {
        *("gpu_temperature_celsius", "gpu_power_watts", "gpu_utilization_ratio"),
        *("gpu_graphics_clock_hertz", "gpu_sm_clock_hertz", "gpu_memory_clock_hertz"),
        *("gpu_memory_total_bytes", "gpu_memory_used_bytes", "gpu_memory_free_bytes"),
    }
)
"""Readings that every working GPU answers or declares unsupported. A failure of one of them is no healthy GPU."""

PROVING_READINGS = CORE_READINGS - {"gpu_utilization_ratio", "gpu_memory_total_bytes"}
"""Core readings that prove that a GPU works. MIG mode hides the utilisation, and the total is a constant."""

_CORE_FAILURES = frozenset(
    {
        *(Reason.DRIVER_ERROR, Reason.TIMEOUT, Reason.NO_DRIVER, Reason.NO_LIBRARY),
        *(Reason.DRIVER_MISMATCH, Reason.NO_SUPPORTED_GPU),
    }
)
"""Reasons of a core reading that failed. Other reasons state what the device, the driver or the mode does not have."""


def device_reason(reasons: Iterable[Reason]) -> Reason | None:
    """Return the worst reason that is about the whole device, or None."""
    found = set(reasons)
    return next((reason for reason in STATE_OF_REASON if reason in found), None)


def is_lost(readings: Mapping[str, Reading]) -> bool:
    """Return whether a device is lost. A reading that it still has is a constant, or from before the loss."""
    state = readings.get("gpu_state")
    return state is not None and state.value == LOST


def shared_reason(reason: Reason) -> Reason:
    """Return the reason of a failure for every device that it affects.

    A failure that names no device is no evidence that one is lost or requires a reset.
    """
    return Reason.DRIVER_ERROR if reason in STATE_OF_REASON else reason


def state_of(values: Mapping[str, Value | Absent], dims: Iterable[DimValue] = ()) -> str | Absent:
    """Return the state of a device by the readings of one pass.

    - One reading that is absent because the GPU is lost or requires a reset decides, whatever the others are.
    - A device without any value is unreadable. If its source reported nothing about it, the state is absent.
    - A core reading that failed is an error, even if other readings have values.
    - A device with values, but without a core reading, is unreadable. If its source reported no core reading, the
      state is absent: the other readings do not prove that the device works.
    """
    reasons: set[Reason] = set()
    has_value = False
    for found in (values.values(), [dim.value for dim in dims]):
        for value in found:
            if value.__class__ is not Absent:
                has_value = True
            elif isinstance(value, Absent):
                reasons.add(value.reason)
    why = device_reason(reasons) if reasons else None
    if why is not None:
        return STATE_OF_REASON[why]
    core = [values[name] for name in CORE_READINGS if name in values]
    failures = {value.reason for value in core if isinstance(value, Absent)}
    if has_value and failures & _CORE_FAILURES:
        return ERROR
    if any(not isinstance(value, Absent) for value in core):
        return OK
    evidence = failures if has_value else reasons
    if evidence <= _NO_EVIDENCE:
        return Absent(Reason.STALE if Reason.STALE in evidence else Reason.NOT_REPORTED)
    return UNREADABLE


def state_with_instances(
    state: str | Absent, instances: Iterable[tuple[Mapping[str, Value | Absent], Iterable[DimValue]]]
) -> str | Absent:
    """Return the state of a GPU by its own state, and by the readings of its MIG devices and vGPU instances.

    An instance that is lost, requires a reset, or has a core reading that failed shows the same of its GPU. An instance
    without any measured number may have ended, and shows no error: see `is_measured`.

    Args:
        state: the GPU's own state.
        instances: readings of each instance, without and with dimensions.
    """
    found = [state_of_instance(values, dims) for values, dims in instances]
    states = [shown for shown in found if isinstance(shown, str) and shown in (LOST, RESET_REQUIRED, ERROR)]
    if not states:
        return state
    return worst_state(states if isinstance(state, Absent) else [state, *states])


def state_of_instance(values: Mapping[str, Value | Absent], dims: Iterable[DimValue]) -> str | Absent:
    """Return the state of a MIG device or vGPU instance by its measured numbers and its absences, as `state_of`."""
    return state_of(
        {name: value for name, value in values.items() if isinstance(value, Absent) or is_measured(name, value)},
        [dim for dim in dims if isinstance(dim.value, Absent) or is_measured(dim.metric, dim.value)],
    )


def is_measured(metric: str, value: Value | Absent) -> bool:
    """Return whether a reading of an instance shows that the instance was measured in the lane of the state.

    Texts (profile, ids) and constants may be those of a listing, and an empty list of processes is no answer.
    """
    return isinstance(value, int | float) and metric not in PROCESS_COUNTS and has_state_lane(metric)


def has_state_lane(metric: str) -> bool:
    """Return whether a metric is read in the lane of the state; one of a newer build counts as such."""
    return metric not in CATALOGUE or CATALOGUE[metric].lane is CATALOGUE["gpu_state"].lane


def is_failure(reason: Reason) -> bool:
    """Return whether a reading with this reason failed; other readings are missing on the device or in its mode."""
    return reason in STATE_OF_REASON or reason in _CORE_FAILURES


def is_evidence(reason: Reason) -> bool:
    """Return whether an absence with this reason shows anything about the device."""
    return reason not in _NO_EVIDENCE


def is_core_error(metric: str, value: Value | Absent | None) -> bool:
    """Return whether a reading is a core reading that failed."""
    return isinstance(value, Absent) and value.reason in _CORE_FAILURES and metric in CORE_READINGS


def worst_state(states: Iterable[str]) -> str:
    """Return the worst of several states; a state of a newer build counts as the best."""
    return min(states, key=lambda state: WORST_FIRST.index(state) if state in WORST_FIRST else len(WORST_FIRST))
