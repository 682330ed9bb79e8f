"""Interpretation of the driver's answers: a value, or the reason for its absence. Pure."""

import math

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Metric, ValueType
from gpufleet.model.reading import Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import LABELS
from gpufleet.readers.nvml.protocol import CallResult

CODE_NAMES = {
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    999: "UNKNOWN",
}
"""nvmlReturn_t without its prefix (nvml.h of driver branch 615)."""

REASONS = {
    3: Reason.NOT_SUPPORTED,
    4: Reason.NOT_PERMITTED,
    6: Reason.NO_DATA,
    9: Reason.NO_DRIVER,
    10: Reason.TIMEOUT,
    12: Reason.NO_LIBRARY,
    13: Reason.NOT_IN_DRIVER,
    15: Reason.GPU_LOST,
    16: Reason.RESET_REQUIRED,
    18: Reason.DRIVER_MISMATCH,
    21: Reason.NO_DATA,
    25: Reason.NOT_IN_DRIVER,
    26: Reason.NOT_SUPPORTED,
    28: Reason.NO_SUPPORTED_GPU,
    protocol.UNTOUCHED: Reason.NOT_REPORTED,
    protocol.NOT_OFFERED: Reason.NOT_IN_DRIVER,
    protocol.UNPROVEN: Reason.NOT_COLLECTED,
    protocol.NO_VALUE: Reason.INVALID_VALUE,
}
"""Return code to reason; any other code is `driver_error` with its name as detail."""

SENTINELS = {32: 0xFFFF_FFFF, 64: 0xFFFF_FFFF_FFFF_FFFF}
"""NVML's "no value" by width of the result (NVML_VALUE_NOT_AVAILABLE)."""


MAX_INTEGER = 0xFFFF_FFFF_FFFF_FFFF
"""Largest number of a metric without a maximum: a converted value can exceed the 64 bits of the wire format."""


def absence_of(code: int, call: str, value: protocol.Value = None) -> Absent:
    """Return the absence for a call that ended with this code; the detail names the call."""
    if code == protocol.UNPROVEN:
        return Absent(REASONS[code], f"{call}: its number in this driver version is not proven")
    if code in REASONS:
        return Absent(REASONS[code], call)
    if code == protocol.DEFECT:
        return Absent(Reason.DRIVER_ERROR, f"{call}: {value}")
    return Absent(Reason.DRIVER_ERROR, f"{call}: {CODE_NAMES.get(code, 'a code without a name')}")


def label_of(number: int) -> str:
    """Return the name of a call by its breadcrumb number."""
    return LABELS[number] if 0 <= number < len(LABELS) else ""


def part_of(answer: CallResult, part: int | None) -> CallResult:
    """Return one value of an answer that has several, as an answer."""
    if answer.code or part is None:
        return answer
    if isinstance(answer.value, list) and part < len(answer.value):
        return CallResult(0, answer.value[part], answer.breadcrumb)
    return CallResult(protocol.UNTOUCHED, None, answer.breadcrumb)


def entry_of(answer: CallResult, position: int) -> CallResult:
    """Return one [code, value] of an answer that has several, as an answer."""
    entry = part_of(answer, position)
    if entry.code or not isinstance(entry.value, list) or len(entry.value) != 2:
        return entry
    code, value = entry.value
    return CallResult(code if isinstance(code, int) else protocol.UNTOUCHED, value, answer.breadcrumb)


def is_sentinel(value: protocol.Value, bits: int) -> bool:
    """Return whether a raw number means "no value": the width's all-ones, NaN or infinity."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return value == SENTINELS.get(bits)


def check(metric: Metric, value: Value, call: str) -> Value | Absent:
    """Return the value if it is within the catalogue's range, else `invalid_value`."""
    if metric.type is ValueType.TEXT or metric.type is ValueType.ENUM or isinstance(value, str):
        return value
    too_low = metric.low is not None and value < metric.low
    too_high = value > (MAX_INTEGER if metric.high is None else metric.high)
    return Absent(Reason.INVALID_VALUE, call) if too_low or too_high else value


def state_of(metric: Metric, number: protocol.Value, call: str) -> Value | Absent:
    """Return the name of a numbered state; a number without a name in the catalogue is invalid."""
    if isinstance(number, int) and 0 <= number < len(metric.states):
        return metric.states[number]
    return Absent(Reason.INVALID_VALUE, f"{call}: a state without a name")
