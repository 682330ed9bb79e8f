"""Parsing of a series (name and labels), its value and its timestamp."""

import re
import sys

from gpufleet.codecs.prometheus_text.page import LineProblem, TextLimits
from gpufleet.model.text import clean

METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_BLANKS = " \t"
_ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "r": "\r"}
"""Escapes of label values. The format lacks `\\r`; all-smi writes it, and no valid page has it."""


class LineError(Exception):
    """Rejected line."""

    def __init__(self, problem: LineProblem) -> None:
        self.problem = problem
        super().__init__(problem)


def parse_series(text: str, limits: TextLimits) -> tuple[str, dict[str, str], int]:
    """Parse a series at the start of a line; return its name, its labels and its end.

    The name stands before the braces, or quoted as the first thing inside them (UTF-8 names).

    Raises:
        LineError: if it does not follow the format, or exceeds a limit.
    """
    end = 0
    while end < len(text) and text[end] not in "{ \t":
        end += 1
    name = text[:end]
    at = _skip(text, end)
    labels: dict[str, str] = {}
    if at < len(text) and text[at] == "{":
        quoted, labels, end = _labels(text, at + 1, limits)
        if quoted and name:
            raise LineError(LineProblem.NAME)
        name = quoted or name
        if not quoted and not METRIC_NAME.match(name):
            raise LineError(LineProblem.NAME)
    elif not METRIC_NAME.match(name):
        raise LineError(LineProblem.NAME)
    if not name or len(name.encode()) > limits.name_bytes:
        raise LineError(LineProblem.NAME)
    return name, labels, end


def _labels(text: str, at: int, limits: TextLimits) -> tuple[str, dict[str, str], int]:
    """Parse labels from after the opening brace to after the closing brace."""
    name = ""
    labels: dict[str, str] = {}
    while True:
        at = _skip(text, at)
        if at >= len(text):
            raise LineError(LineProblem.SYNTAX)
        if text[at] == "}":
            return name, labels, at + 1
        quoted = text[at] == '"'
        if quoted:
            label, at = _quoted(text, at + 1, limits)
            label = clean(label)
        else:
            start = at
            while at < len(text) and text[at] not in "= \t,}":
                at += 1
            label = text[start:at]
        at = _skip(text, at)
        if quoted and not name and not labels and text[at : at + 1] in (",", "}"):
            name = label
        elif text[at : at + 1] != "=":
            raise LineError(LineProblem.SYNTAX)
        else:
            at = _skip(text, at + 1)
            if text[at : at + 1] != '"':
                raise LineError(LineProblem.SYNTAX)
            value, at = _quoted(text, at + 1, limits)
            _add(labels, label, value, limits, quoted=quoted)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "}":
            raise LineError(LineProblem.SYNTAX)


def _add(labels: dict[str, str], label: str, value: str, limits: TextLimits, *, quoted: bool) -> None:
    if not label or len(label) > limits.name_bytes or not (quoted or LABEL_NAME.match(label)):
        raise LineError(LineProblem.NAME)
    if label in labels:
        raise LineError(LineProblem.LABEL_TWICE)
    if len(labels) == limits.labels:
        raise LineError(LineProblem.TOO_MANY_LABELS)
    labels[label] = clean(value)


def _quoted(text: str, at: int, limits: TextLimits) -> tuple[str, int]:
    """Parse from after an opening quote to after the closing quote. An unknown escape is kept unchanged."""
    start, parts = at, []
    while True:
        stop = text.find('"', at)
        if stop < 0:
            raise LineError(LineProblem.SYNTAX)
        escape = text.find("\\", at, stop)
        if escape < 0:
            parts.append(text[at:stop])
            break
        parts.append(text[at:escape])
        following = text[escape + 1 : escape + 2]
        parts.append(_ESCAPES.get(following, "\\" + following))
        at = escape + 2
    if stop - start > limits.value_bytes or len(text[start:stop].encode()) > limits.value_bytes:
        raise LineError(LineProblem.LABEL_TOO_LONG)
    return "".join(parts), stop + 1


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


MAX_NUMBER_BYTES = 64
"""Maximum length of a number; any 64-bit number is shorter."""

INTEGER_DIGITS = 20
"""Number of digits from which an integer may exceed 64 bits."""

INSTANT_DIGITS, FRACTION_DIGITS = 16, 9
"""Maximum digits of a timestamp before and after the point."""

FLOAT_MAX = sys.float_info.max

_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}\Z")
_FLOAT = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_SPECIAL = {b"nan", b"inf", b"+inf", b"-inf", b"infinity", b"+infinity", b"-infinity"}

MILLISECOND, SECOND = 1_000_000, 1_000_000_000
_LAST = 2**63 - 1


def value_of(token: bytes) -> int | float:
    """Return a value: an int for an integer of up to 64 bits, else a float.

    Raises:
        LineError: if the text is not a number.
    """
    if _INTEGER.match(token):
        return int(token)
    if token.lower() in _SPECIAL:
        return float(token)
    if len(token) <= MAX_NUMBER_BYTES and _FLOAT.match(token) and -FLOAT_MAX <= (number := float(token)) <= FLOAT_MAX:
        return number
    raise LineError(LineProblem.VALUE)


def time_of(token: bytes, *, openmetrics: bool) -> int:
    """Return nanoseconds since 1970 of a timestamp: milliseconds in text, seconds with a fraction in OpenMetrics.

    Raises:
        LineError: if the text is not a timestamp, or not after 1970.
    """
    whole, point, fraction = token.partition(b".")
    if not whole.isdigit() or len(whole) > INSTANT_DIGITS:
        raise LineError(LineProblem.TIMESTAMP)
    instant = int(whole) * (SECOND if openmetrics else MILLISECOND)
    if point:
        if not openmetrics or not fraction.isdigit() or len(fraction) > FRACTION_DIGITS:
            raise LineError(LineProblem.TIMESTAMP)
        instant += int(fraction) * 10 ** (FRACTION_DIGITS - len(fraction))
    if not 0 < instant <= _LAST:
        raise LineError(LineProblem.TIMESTAMP)
    return instant
