"""Texts of the NVIDIA driver in place of a value: the only copy of the rule. Pure.

nvidia-smi prints them, and exporters repeat its cells.
"""

from gpufleet.model.absence import Reason

_OF_DEVICE = {
    "gpu is lost": Reason.GPU_LOST,
    "gpu requires reset": Reason.RESET_REQUIRED,
    "gpu requires restart": Reason.RESET_REQUIRED,
}
"""Parts of messages that are about the whole device: drivers add what to do, such as `Reboot the system`."""

_PLACEHOLDERS = {
    "n/a": Reason.NOT_SUPPORTED,
    "not supported": Reason.NOT_SUPPORTED,
    "requested functionality has been deprecated": Reason.NOT_SUPPORTED,
    "not available in wddm driver model": Reason.NOT_SUPPORTED,
    "function not found": Reason.NOT_IN_DRIVER,
    "insufficient permissions": Reason.NOT_PERMITTED,
    "no permission": Reason.NOT_PERMITTED,
    "not found": Reason.NO_DATA,
    "no data": Reason.NO_DATA,
    "": Reason.NO_DATA,
    "reset required": Reason.RESET_REQUIRED,
    "timeout": Reason.TIMEOUT,
    "driver not loaded": Reason.NO_DRIVER,
    "nvml shared library not found": Reason.NO_LIBRARY,
    "rm has detected an nvml/rm version mismatch.": Reason.DRIVER_MISMATCH,
    **dict.fromkeys(
        (
            *("unknown error", "err!", "error", "uninitialized", "invalid argument", "insufficient size"),
            *("insufficient external power", "interrupt request issue", "corrupted inforom", "insufficient memory"),
            *("in use by another client", "not ready", "system is not in ready state"),
            "the operating system has blocked the request.",
        ),
        Reason.DRIVER_ERROR,
    ),
}
"""Placeholders for a missing value, without brackets and in lower case.

Seen in captures of drivers 535 to 595: `N/A`, `[N/A]`, the deprecation, `Insufficient Permissions`. Seen in public
logs: `[GPU is lost]`, `[GPU requires reset]`, `[Unknown Error]`, and `System is not in ready state` for the clocks of a
GPU that needed a reset. The others are the texts of return codes in nvidia-ml-py.
"""


ZERO_REASONS = {"gpu_memory_temperature_celsius": Reason.NOT_SUPPORTED, "gpu_c2c_enabled": Reason.NO_DATA}
"""Metric to the meaning of nvidia-smi's 0 or `Disabled`, which it prints also for boards that lack the thing.

Seen on boards without HBM (memory temperature), and on H100 and H200 (chip-to-chip link).
"""


def text_reason(text: str) -> Reason | None:
    """Return the reason of a text in place of a value, or None if the text is a value.

    Drivers have messages that these tables lack: any other text in brackets is an error.
    """
    lower = text.strip().lower()
    bare = lower.removeprefix("[").removesuffix("]").strip()
    why = _PLACEHOLDERS.get(bare)
    if why is not None:
        return why
    if "gpu " in bare:
        why = next((reason for part, reason in _OF_DEVICE.items() if part in bare), None)
    is_message = lower.startswith("[") and lower.endswith("]")
    return why or (Reason.DRIVER_ERROR if is_message else None)
