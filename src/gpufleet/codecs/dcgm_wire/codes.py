"""Return codes of the engine, and sentinels (blank values)."""

import math

from gpufleet.model.absence import Reason
from gpufleet.model.device_state import device_reason, shared_reason

OK, NO_DATA, STALE_DATA, NOT_WATCHED, INSUFFICIENT_SIZE = 0, -14, -15, -16, -31
VERSION_MISMATCH, FUNCTION_NOT_FOUND, UNKNOWN_FIELD, BAD_PARAMETER = -12, -20, -13, -1

CODE_NAMES = {
    -1: "BADPARAM",
    -3: "GENERIC_ERROR",
    -4: "MEMORY",
    -5: "NOT_CONFIGURED",
    -6: "NOT_SUPPORTED",
    -7: "INIT_ERROR",
    -8: "NVML_ERROR",
    -9: "PENDING",
    -11: "TIMEOUT",
    -12: "VER_MISMATCH",
    -13: "UNKNOWN_FIELD",
    -14: "NO_DATA",
    -15: "STALE_DATA",
    -16: "NOT_WATCHED",
    -17: "NO_PERMISSION",
    -18: "GPU_IS_LOST",
    -19: "RESET_REQUIRED",
    -20: "FUNCTION_NOT_FOUND",
    -21: "CONNECTION_NOT_VALID",
    -22: "GPU_NOT_SUPPORTED",
    -26: "DUPLICATE_KEY",
    -31: "INSUFFICIENT_SIZE",
    -32: "FIELD_UNSUPPORTED_BY_API",
    -33: "MODULE_NOT_LOADED",
    -35: "GROUP_IS_EMPTY",
    -36: "PROFILING_NOT_SUPPORTED",
    -37: "PROFILING_LIBRARY_ERROR",
    -38: "PROFILING_MULTI_PASS",
    -54: "PAUSED",
    -56: "NVML_NOT_LOADED",
    -57: "NVML_DRIVER_TIMEOUT",
    -67: "GPUS_DETACHED",
}
"""dcgmReturn_t without its prefix (dcgm_structs.h of DCGM 4.6)."""

REASONS = {
    -6: Reason.NOT_SUPPORTED,
    -11: Reason.TIMEOUT,
    -13: Reason.NOT_IN_DRIVER,
    -14: Reason.NO_DATA,
    -15: Reason.STALE,
    -16: Reason.NO_DATA,
    -17: Reason.NOT_PERMITTED,
    -18: Reason.GPU_LOST,
    -19: Reason.RESET_REQUIRED,
    -32: Reason.NOT_SUPPORTED,
    -33: Reason.NOT_SUPPORTED,
    -36: Reason.NOT_SUPPORTED,
    -56: Reason.NO_LIBRARY,
    -57: Reason.TIMEOUT,
    -67: Reason.NOT_COLLECTED,
}
"""Code to reason; every other code is `driver_error`."""

DEVICE_CODES = frozenset(code for code, reason in REASONS.items() if device_reason([reason]) is not None)
"""Codes that mean a lost GPU, or one that requires a reset."""

_BLANK = (Reason.NO_DATA, Reason.NO_DATA, Reason.NOT_SUPPORTED, Reason.NOT_PERMITTED)
"""Meaning of a blank value by its offset: blank, not found, not supported, not permitted."""

INT32_BLANK, INT64_BLANK, DOUBLE_BLANK = 0x7FFF_FFF0, 0x7FFF_FFFF_FFFF_FFF0, 140_737_488_355_328.0
_TEXT_BLANK = {
    "<<<NULL>>>": Reason.NO_DATA,
    "<<<NOT_FOUND>>>": Reason.NO_DATA,
    "<<<NOT_SUPPORTED>>>": Reason.NOT_SUPPORTED,
    "<<<NOT_PERM>>>": Reason.NOT_PERMITTED,
}


def refusal_reason(code: int) -> Reason:
    """Return the reason for a code that refuses a command. It names no GPU, so that it is no evidence about one."""
    return shared_reason(REASONS.get(code, Reason.DRIVER_ERROR))


def name_of(code: int) -> str:
    """Return the name of a return code."""
    return CODE_NAMES.get(code, f"code {code}")


def blank_of(value: float | str) -> Reason | None:
    """Return the reason of a blank value with status 0; None for a real value."""
    if isinstance(value, str):
        return _TEXT_BLANK.get(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return Reason.INVALID_VALUE
        return _step(value - DOUBLE_BLANK) if value >= DOUBLE_BLANK else None
    if value >= INT64_BLANK:
        return _step(value - INT64_BLANK)
    return _step(value - INT32_BLANK) if 0 <= value - INT32_BLANK < len(_BLANK) else None


def _step(over: float) -> Reason:
    return _BLANK[int(over)] if over < len(_BLANK) else Reason.NO_DATA
