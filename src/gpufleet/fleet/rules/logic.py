"""Three-valued logic over columns: 1 is true, 0 is false, NaN is unknown. Pure.

A comparison with a missing number is unknown. A conjunction with a false part is false even if other parts are
unknown; a disjunction with a true part is true.
"""

from typing import Any

import numpy as np

Column = np.ndarray[Any, np.dtype[Any]]
"""Column of numbers, one per subject; NaN is a missing number."""

Operand = Column | float

HOUR_SECONDS, DAY_SECONDS = 3600.0, 86_400.0


def over(left: Operand, right: Operand) -> Column:
    """Return whether the left number is larger."""
    return _known(np.greater(left, right), left, right)


def at_least(left: Operand, right: Operand) -> Column:
    """Return whether the left number is larger or equal."""
    return _known(np.greater_equal(left, right), left, right)


def under(left: Operand, right: Operand) -> Column:
    """Return whether the left number is smaller."""
    return _known(np.less(left, right), left, right)


def equal(left: Operand, right: Operand) -> Column:
    """Return whether both numbers are equal."""
    return _known(np.equal(left, right), left, right)


def negate(part: Column) -> Column:
    """Return the opposite."""
    return 1.0 - part


def all_of(*parts: Column) -> Column:
    """Return whether all parts are true."""
    table = np.stack(parts)
    result = np.where(np.isnan(table).any(axis=0), np.nan, 1.0)
    return np.where((table == 0).any(axis=0), 0.0, result)


def any_of(*parts: Column) -> Column:
    """Return whether a part is true."""
    table = np.stack(parts)
    result = np.where(np.isnan(table).any(axis=0), np.nan, 0.0)
    return np.where((table == 1).any(axis=0), 1.0, result)


def any_known(*parts: Column) -> Column:
    """Return whether a part is true, ignoring unknown parts; unknown if all parts are.

    For inputs that many devices do not have.
    """
    table = np.stack(parts)
    result = np.where(np.isnan(table).all(axis=0), np.nan, 0.0)
    return np.where((table == 1).any(axis=0), 1.0, result)


def in_window(part: Column, known_seconds: Operand, window_seconds: float) -> Column:
    """Return a condition about the events of a past time; false only if the whole time is known."""
    return np.where((part == 0) & ~np.greater_equal(known_seconds, window_seconds), np.nan, part)


def _known(result: Any, left: Operand, right: Operand) -> Column:
    return np.where(np.isnan(left) | np.isnan(right), np.nan, result)
