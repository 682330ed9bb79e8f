"""From the driver's units to the catalogue's: the only place that knows NVML's."""

from collections.abc import Callable

from gpufleet.model.reading import Value
from gpufleet.readers.nvml import protocol


def number(value: protocol.Value) -> int | float:
    """Return a number as it is.

    Raises:
        TypeError: if it is none.
    """
    if isinstance(value, int | float):
        return value
    raise TypeError(f"the driver's answer is no number but {type(value).__name__}")


def same(value: protocol.Value) -> Value:
    """Return a whole number."""
    return int(number(value))


def degrees(value: protocol.Value) -> Value:
    """Return degrees Celsius."""
    return float(number(value))


def sensor_degrees(value: protocol.Value) -> Value | None:
    """Return degrees Celsius. A board without the sensor answers 0 (seen on boards without HBM): none."""
    return float(number(value)) or None


def percent(value: protocol.Value) -> Value:
    """Return a ratio."""
    return number(value) / 100


_EXPONENT, _MANTISSA_SHIFT, _MANTISSA = 0xFF, 8, 0xF


def bit_errors(value: protocol.Value) -> Value:
    """Return a ratio from NVLink's packed decimal: bits 0 to 7 are a negative exponent of ten, 8 to 11 what it scales.

    nvml.h: NVML_NVLINK_BER_EXP_WIDTH and _SHIFT, NVML_NVLINK_BER_MANTISSA_WIDTH and _SHIFT.

    Raises:
        ValueError: if other bits are set.
    """
    packed = int(number(value))
    if packed >> _MANTISSA_SHIFT > _MANTISSA:
        raise ValueError("not a packed ratio")
    return float(f"{packed >> _MANTISSA_SHIFT}e-{packed & _EXPONENT}")


def milli(value: protocol.Value) -> Value:
    """Return watts, or joules, from thousandths."""
    return number(value) / 1000


def mega(value: protocol.Value) -> Value:
    """Return hertz, or bytes a second, from millions."""
    return int(number(value)) * 1_000_000


def text(value: protocol.Value) -> Value | None:
    """Return a text without blanks around it, or None."""
    return (str(value).strip() or None) if isinstance(value, str | int) else None


def nano(value: protocol.Value) -> Value:
    """Return seconds from nanoseconds."""
    return number(value) / 1_000_000_000


def kibi(value: protocol.Value) -> Value:
    """Return bytes from KiB."""
    return int(number(value)) * 1024


def mebi(value: protocol.Value) -> Value:
    """Return bytes a second from MiB a second."""
    return float(number(value)) * 1024 * 1024


def count(value: protocol.Value) -> Value | None:
    """Return how many there are of what was listed."""
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
"""What some of these do to a whole number: times the first, or divided by the second if that is not 0.

For whoever converts many of them, and does not call a function for each.
"""
