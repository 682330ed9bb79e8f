"""What a call to the driver works with, and the return codes that the child itself acts on."""

from collections.abc import Callable
from typing import Any, NamedTuple

NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, INVALID_ARGUMENT, INSUFFICIENT_SIZE = 3, 13, 26, 2, 7
VERSION_MISMATCH = 25


class Context(NamedTuple):
    """What a call works with.

    Attributes:
        nvml: the binding, the module `pynvml`, initialised.
        handle: of the device.
        driver: major number of the driver's version, or 0 if it is not known.
        mark: leaves the breadcrumb of a further function that a call is about to enter.
    """

    nvml: Any
    handle: Any
    driver: int
    mark: Callable[[str], None]


def raw_function(context: Context, name: str) -> Callable[..., int]:
    """Return the library's own function, for what the binding gets wrong."""
    try:
        function: Callable[..., int] = getattr(context.nvml.nvmlLib, name)
    except AttributeError:
        raise context.nvml.NVMLError(FUNCTION_NOT_FOUND) from None
    return function
