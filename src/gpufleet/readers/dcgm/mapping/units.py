"""Conversion of DCGM's units to the catalogue's.

The original field ids use MiB, MHz, mJ, percent and nanoseconds. The field ids added by DCGM 4.6.1 use base units.
"""

from collections.abc import Callable

from gpufleet.model.reading import Value

RawValue = int | float | str
Convert = Callable[[RawValue], Value | None]
"""Converts a value of the engine to the catalogue's unit; None for no value. Raises TypeError or ValueError."""


def number(value: RawValue) -> int | float:
    """Return a number unchanged; raises TypeError for text."""
    if isinstance(value, str):
        raise TypeError(f"text instead of a number: {value[:40]!r}")
    return value


def integer(value: RawValue) -> Value:
    """Return an integer."""
    return int(number(value))


def float_value(value: RawValue) -> Value:
    """Return a float."""
    return float(number(value))


def sensor(value: RawValue) -> Value | None:
    """Return degrees or watts. DCGM reports 0 if the driver has no such value: it does not check the field's own code.

    Seen for the memory temperature of boards without HBM and of vGPU guests.
    """
    return float(number(value)) or None


def percent(value: RawValue) -> Value:
    """Return a ratio from a percentage."""
    return number(value) / 100


def milli(value: RawValue) -> Value:
    """Return joules from millijoules."""
    return number(value) / 1000


def nano(value: RawValue) -> Value:
    """Return seconds from nanoseconds."""
    return number(value) / 1_000_000_000


def mega(value: RawValue) -> Value:
    """Return hertz from MHz."""
    return int(number(value)) * 1_000_000


def mebi(value: RawValue) -> Value:
    """Return bytes from MiB."""
    return int(number(value)) << 20


def text(value: RawValue) -> Value | None:
    """Return text without surrounding whitespace, or None if empty."""
    return str(value).strip() or None


def cuda_version(value: RawValue) -> Value | None:
    """Return `12.4` from 12040."""
    found = int(number(value))
    return f"{found // 1000}.{found % 1000 // 10}" if found > 0 else None


def compute_mode(value: RawValue) -> Value | None:
    """Return the index in the catalogue's compute modes. DCGM's own numbers (dcgm_structs.h) have 1 for prohibited."""
    return {0: 0, 1: 2, 2: 3}.get(int(number(value)))


def license_state(value: RawValue) -> Value | None:
    """Return the index of `licensed` or `unlicensed` in the catalogue's licence states."""
    return {0: 4, 1: 5}.get(int(number(value)))
