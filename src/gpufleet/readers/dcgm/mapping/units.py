"""From DCGM's units to the catalogue's.

Field ids of old mean MiB, MHz, mJ, percent and nanoseconds; what DCGM 4.6.1 added under new ids is in base units.
"""

from collections.abc import Callable

from gpufleet.model.reading import Value

Told = int | float | str
Convert = Callable[[Told], Value | None]
"""Turns what the engine told into the catalogue's unit; None where it says nothing. Raises TypeError, ValueError."""


def number(told: Told) -> int | float:
    """Return a number as it is. Raises TypeError if it is none."""
    if isinstance(told, str):
        raise TypeError(f"a text where a number is expected: {told[:40]!r}")
    return told


def same(told: Told) -> Value:
    """Return a whole number."""
    return int(number(told))


def real(told: Told) -> Value:
    """Return a number with a fraction."""
    return float(number(told))


def sensor(told: Told) -> Value | None:
    """Return degrees. A board without the sensor is told as 0 (seen on boards without HBM): that is no temperature."""
    return float(number(told)) or None


def percent(told: Told) -> Value:
    """Return a ratio from a percentage."""
    return number(told) / 100


def milli(told: Told) -> Value:
    """Return joules from thousandths."""
    return number(told) / 1000


def nano(told: Told) -> Value:
    """Return seconds from nanoseconds."""
    return number(told) / 1_000_000_000


def mega(told: Told) -> Value:
    """Return hertz from MHz."""
    return int(number(told)) * 1_000_000


def mebi(told: Told) -> Value:
    """Return bytes from MiB."""
    return int(number(told)) << 20


def text(told: Told) -> Value | None:
    """Return a text without blanks around it, or None."""
    return str(told).strip() or None


def cuda_version(told: Told) -> Value | None:
    """Return `12.4` from 12040."""
    found = int(number(told))
    return f"{found // 1000}.{found % 1000 // 10}" if found > 0 else None


def license_state(told: Told) -> Value | None:
    """Return the position of `licensed` or `unlicensed` among the states of a licence."""
    return {0: 4, 1: 5}.get(int(number(told)))
