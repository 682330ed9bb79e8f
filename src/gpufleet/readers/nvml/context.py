"""Context of a driver call, and the return codes that the child acts on."""

from collections.abc import Callable
from typing import Any, NamedTuple

NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, INVALID_ARGUMENT, INSUFFICIENT_SIZE = 3, 13, 26, 2, 7
VERSION_MISMATCH, NOT_FOUND, TIMEOUT, NO_DATA = 25, 6, 10, 21
UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND = 1, 9, 15, 16, 18, 28
UNKNOWN = 999

DEVICE_ENDED_CODES = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND})
"""Codes that end the pass over a device."""

PERMANENT_CODES = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, VERSION_MISMATCH})
"""Codes that remain valid until the device is attached again: the call is not repeated."""


class DeviceEndedError(Exception):
    """End of the pass over a device.

    Attributes:
        code: NVML return code.
        breadcrumb: number of the call.
    """

    def __init__(self, code: int, breadcrumb: int) -> None:
        self.code = code
        self.breadcrumb = breadcrumb
        super().__init__(code)


class DeviceCache:
    """Values that the calls of one device keep between rounds, by name. Cleared when the device is attached again.

    A value that holds a resource of the driver has a method `close`.

    Attributes:
        last_timestamps: timestamp in microseconds of the newest sample, by function. Never cleared: the driver keeps
            its samples over an attachment, and an old sample must not be reported as current.
    """

    def __init__(self) -> None:
        self.last_timestamps: dict[str, int] = {}
        self._values: dict[str, Any] = {}

    def get_or_create(self, name: str, create: Callable[[], Any]) -> Any:
        """Return the value of a name; create it the first time."""
        if name not in self._values:
            self._values[name] = create()
        return self._values[name]

    def drop(self, name: str) -> None:
        """Close and remove the value of a name, if there is one."""
        close = getattr(self._values.pop(name, None), "close", None)
        if close is not None:
            close()

    def clear(self) -> None:
        """Close and remove all values."""
        for name in list(self._values):
            self.drop(name)


class Context(NamedTuple):
    """Context of a call.

    Attributes:
        nvml: the initialised binding, module `pynvml`.
        handle: of the device or instance.
        driver: the driver's version as numbers, such as (580, 159, 4); empty if unknown.
        mark: leaves the breadcrumb of a further function before the call enters it.
        cache: values that calls of this device keep between rounds.
    """

    nvml: Any
    handle: Any
    driver: tuple[int, ...]
    mark: Callable[[str], None]
    cache: DeviceCache


def raw_function(context: Context, name: str) -> Callable[..., int]:
    """Return the library's own function, where the binding's wrapper is wrong.

    Raises:
        NVMLError: FUNCTION_NOT_FOUND if the library does not have it.
    """
    try:
        function: Callable[..., int] = getattr(context.nvml.nvmlLib, name)
    except AttributeError:
        raise context.nvml.NVMLError(FUNCTION_NOT_FOUND) from None
    return function


def check(context: Context, code: int) -> None:
    """Raise NVMLError unless the code is 0."""
    if code:
        raise context.nvml.NVMLError(code)
