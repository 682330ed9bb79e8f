"""Conversion from NVML's units to the catalogue's. No other module converts."""

from collections.abc import Callable

from gpufleet.model.reading import Value
from gpufleet.readers.nvml import protocol


def number(value: protocol.Value) -> int | float:
    """Return a number unchanged.

    Raises:
        TypeError: if the value is not a number.
    """
    if isinstance(value, int | float):
        return value
    raise TypeError(f"the driver returned {type(value).__name__} instead of a number")


def same(value: protocol.Value) -> Value:
    """Return an integer."""
    return int(number(value))


def degrees(value: protocol.Value) -> Value:
    """Return degrees Celsius."""
    return float(number(value))


def sensor_degrees(value: protocol.Value) -> Value | None:
    """Return degrees Celsius. A board without the sensor reports 0 (seen on boards without HBM): None."""
    return float(number(value)) or None


def percent(value: protocol.Value) -> Value:
    """Return a ratio from percent."""
    return number(value) / 100


_EXPONENT, _MANTISSA_SHIFT, _MANTISSA = 0xFF, 8, 0xF

_UNMEASURED = 0xFFF
"""All bits of a packed ratio: `15e-255` by nvidia-smi, for links without counted errors (seen on B300)."""


def bit_errors(value: protocol.Value) -> Value | None:
    """Return a ratio from NVLink's packed decimal: bits 0 to 7 are a negative exponent of ten, 8 to 11 the mantissa.

    nvml.h: NVML_NVLINK_BER_EXP_WIDTH and _SHIFT, NVML_NVLINK_BER_MANTISSA_WIDTH and _SHIFT. A link without a measured
    ratio has all bits set: None.

    Raises:
        ValueError: if other bits are set.
    """
    packed = int(number(value))
    if packed >> _MANTISSA_SHIFT > _MANTISSA:
        raise ValueError("not a packed ratio")
    if packed == _UNMEASURED:
        return None
    return float(f"{packed >> _MANTISSA_SHIFT}e-{packed & _EXPONENT}")


def milli(value: protocol.Value) -> Value:
    """Return watts or joules from thousandths."""
    return number(value) / 1000


def mega(value: protocol.Value) -> Value:
    """Return hertz or bytes per second from millions."""
    return int(number(value)) * 1_000_000


def text(value: protocol.Value) -> Value | None:
    """Return a text without surrounding whitespace, or None if it is empty."""
    return (str(value).strip() or None) if isinstance(value, str | int) else None


def nano(value: protocol.Value) -> Value:
    """Return seconds from nanoseconds."""
    return number(value) / 1_000_000_000


def kibi(value: protocol.Value) -> Value:
    """Return bytes from KiB."""
    return int(number(value)) * 1024


def mebi(value: protocol.Value) -> Value:
    """Return bytes per second from MiB per second."""
    return float(number(value)) * 1024 * 1024


def count(value: protocol.Value) -> Value | None:
    """Return the length of a list."""
    return len(value) if isinstance(value, list) else None


SCALES: dict[Callable[[protocol.Value], Value | None], tuple[int, int]] = {
    same: (1, 0),
    mega: (1_000_000, 0),
    kibi: (1024, 0),
    degrees: (1, 1),
    percent: (1, 100),
    milli: (1, 1000),
    nano: (1, 1_000_000_000),
}
"""Conversion function to its factor and divisor for integers: multiply, or divide if the divisor is not 0.

For bulk conversion without a function call per value.
"""
