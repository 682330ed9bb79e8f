"""What a call to the driver works with, and the return codes that the child itself acts on."""

from collections.abc import Callable
from typing import Any, NamedTuple

NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, INVALID_ARGUMENT, INSUFFICIENT_SIZE = 3, 13, 26, 2, 7
VERSION_MISMATCH, NOT_FOUND, TIMEOUT, NO_DATA = 25, 6, 10, 21
UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND = 1, 9, 15, 16, 18, 28

ENDS_DEVICE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND})
"""Codes after which nothing more is asked of a device in this pass."""

LASTING = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, VERSION_MISMATCH})
"""Codes that stay true until the device is attached again: the call is not repeated."""


class DeviceEndedError(Exception):
    """The pass over this device is over; carries the code and the number of the call."""

    def __init__(self, code: int, asked: int) -> None:
        self.code = code
        self.asked = asked
        super().__init__(code)


class Memory:
    """What the calls of one device keep between rounds, by name; forgotten when it is attached again.

    A value that holds something of the driver's has a method `close`.

    Attributes:
        seen: time stamp in microseconds of the newest sample that was taken, by function. Never forgotten: the driver
            keeps its samples over an attachment, and an old one must not be told again as one of now.
    """

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self._kept: dict[str, Any] = {}

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what is kept under a name; the first time, make it."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def drop(self, name: str) -> None:
        """Give up what is kept under a name, if anything is."""
        close = getattr(self._kept.pop(name, None), "close", None)
        if close is not None:
            close()

    def forget(self) -> None:
        """Give everything up."""
        for name in list(self._kept):
            self.drop(name)


class Context(NamedTuple):
    """What a call works with.

    Attributes:
        nvml: the binding, the module `pynvml`, initialised.
        handle: of the device, or of the instance that is asked about.
        driver: the driver's version as numbers, such as (580, 159, 4); empty if it is not known.
        mark: leaves the breadcrumb of a further function that a call is about to enter.
        memory: what calls of this device keep between rounds.
    """

    nvml: Any
    handle: Any
    driver: tuple[int, ...]
    mark: Callable[[str], None]
    memory: Memory


def raw_function(context: Context, name: str) -> Callable[..., int]:
    """Return the library's own function, for what the binding gets wrong.

    Raises:
        NVMLError: FUNCTION_NOT_FOUND if the library has none of that name.
    """
    try:
        function: Callable[..., int] = getattr(context.nvml.nvmlLib, name)
    except AttributeError:
        raise context.nvml.NVMLError(FUNCTION_NOT_FOUND) from None
    return function


def check(context: Context, code: int) -> None:
    """Raise NVMLError unless the code is success."""
    if code:
        raise context.nvml.NVMLError(code)
