"""Shared parsing of numbers and printable texts."""

import re

from gpufleet.model.errors import WireError

MAX_COUNT = 2**63 - 1
"""Largest integer that every store supports; an unsigned -1 of the kernel exceeds it."""

MAX_TEXT = 256
"""Maximum length of a text, in characters."""

_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,12})?", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


def count(token: str, where: str) -> int:
    """Parse a non-negative decimal integer.

    Raises:
        WireError: if the token is anything else, or exceeds `MAX_COUNT`.
    """
    token = token.strip()
    if not (token.isascii() and token.isdigit()) or len(token) > 20:
        raise WireError(where, f"{token[:40]!r} is not a count")
    value = int(token)
    if value > MAX_COUNT:
        raise WireError(where, f"{token} exceeds the range of counters")
    return value


def number(token: str, where: str) -> float:
    """Parse a non-negative decimal number without exponent.

    Raises:
        WireError: if the token is anything else.
    """
    token = token.strip()
    if _NUMBER.fullmatch(token) is None:
        raise WireError(where, f"{token[:40]!r} is not a number")
    return float(token)


def hexadecimal(token: str, where: str) -> int:
    """Parse a number of at most eight hexadecimal digits after `0x`.

    Raises:
        WireError: if the token is anything else.
    """
    token = token.strip()
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", token) is None:
        raise WireError(where, f"{token[:40]!r} is not a hexadecimal number")
    return int(token, 16)


def decode(content: bytes) -> str:
    """Decode UTF-8; invalid bytes become U+FFFD."""
    return content.decode("utf-8", errors="replace")


def printable(text: str) -> str:
    """Return printable text: control characters become a space, ends are stripped, at most `MAX_TEXT` characters."""
    return _UNPRINTABLE.sub(" ", text).strip()[:MAX_TEXT].strip()


def line(content: bytes, where: str) -> str:
    """Return the single line of a file as printable text; a trailing NUL, as in device trees, is removed.

    Raises:
        WireError: if the text is empty.
    """
    text = printable(decode(content))
    if not text:
        raise WireError(where, "empty")
    return text
