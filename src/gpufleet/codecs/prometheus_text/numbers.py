"""The numbers behind a series: its value, and the instant it may carry."""

import re
import sys

from gpufleet.codecs.prometheus_text.labels import LineError
from gpufleet.codecs.prometheus_text.page import Problem

MAX_NUMBER_BYTES = 64
"""Longer than any 64-bit number is written."""

INTEGER_DIGITS = 20
"""Fewer digits than this are an integer that 64 bits hold."""

FLOAT_MAX = sys.float_info.max

_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}\Z")
_FLOAT = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_SPECIAL = {b"nan", b"inf", b"+inf", b"-inf", b"infinity", b"+infinity", b"-infinity"}
_INSTANT = re.compile(rb"-?[0-9]{1,16}(?:\.[0-9]{1,9})?\Z")

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
    if not _INSTANT.match(word) or (not openmetrics and b"." in word):
        raise LineError(Problem.TIMESTAMP)
    whole, _, fraction = word.partition(b".")
    unit = SECOND if openmetrics else MILLISECOND
    instant = int(whole) * unit + int(fraction.ljust(9, b"0") or 0)
    if not 0 < instant <= _LAST:
        raise LineError(Problem.TIMESTAMP)
    return instant
