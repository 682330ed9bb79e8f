"""The numbers behind a series: its value, and the instant it may carry."""

import re
import sys

from gpufleet.codecs.prometheus_text.labels import LineError
from gpufleet.codecs.prometheus_text.page import Problem

MAX_NUMBER_BYTES = 64
"""Longer than any 64-bit number is written."""

INTEGER_DIGITS = 20
"""Fewer digits than this are an integer that 64 bits hold."""

INSTANT_DIGITS, FRACTION_DIGITS = 16, 9
"""No instant has more before and behind the point."""

FLOAT_MAX = sys.float_info.max

_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}\Z")
_FLOAT = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_SPECIAL = {b"nan", b"inf", b"+inf", b"-inf", b"infinity", b"+infinity", b"-infinity"}

MILLISECOND, SECOND = 1_000_000, 1_000_000_000
_LAST = 2**63 - 1


def value_of(word: bytes) -> int | float:
    """Return a value: an int where an integer is written that 64 bits hold, else a float.

    Raises:
        LineError: if it is no number.
    """
    if _INTEGER.match(word):
        return int(word)
    if word.lower() in _SPECIAL:
        return float(word)
    if len(word) <= MAX_NUMBER_BYTES and _FLOAT.match(word) and -FLOAT_MAX <= (number := float(word)) <= FLOAT_MAX:
        return number
    raise LineError(Problem.VALUE)


def time_of(word: bytes, *, openmetrics: bool) -> int:
    """Return nanoseconds since 1970 of a timestamp: milliseconds in text, seconds with a fraction in OpenMetrics.

    Raises:
        LineError: if it is none, or not after 1970.
    """
    whole, point, fraction = word.partition(b".")
    if not whole.isdigit() or len(whole) > INSTANT_DIGITS:
        raise LineError(Problem.TIMESTAMP)
    instant = int(whole) * (SECOND if openmetrics else MILLISECOND)
    if point:
        if not openmetrics or not fraction.isdigit() or len(fraction) > FRACTION_DIGITS:
            raise LineError(Problem.TIMESTAMP)
        instant += int(fraction) * 10 ** (FRACTION_DIGITS - len(fraction))
    if not 0 < instant <= _LAST:
        raise LineError(Problem.TIMESTAMP)
    return instant
