"""What every parser here shares: strict numbers, and texts fit to be shown."""

import re

from gpufleet.model.errors import WireError

MAX_COUNT = 2**63 - 1
"""The largest integer that every store keeps. The kernel's -1 in an unsigned counter lies beyond it."""

MAX_TEXT = 256
"""Characters of a text that are kept."""

_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,12})?", re.ASCII)
_UNSHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


def count(token: str, where: str) -> int:
    """Read a non-negative decimal integer.

    Raises:
        WireError: if it is anything else, or beyond `MAX_COUNT`.
    """
    token = token.strip()
    if not (token.isascii() and token.isdigit()) or len(token) > 20:
        raise WireError(where, f"{token[:40]!r} is not a count")
    value = int(token)
    if value > MAX_COUNT:
        raise WireError(where, f"{token} is beyond every counter")
    return value


def number(token: str, where: str) -> float:
    """Read a non-negative decimal number without exponent.

    Raises:
        WireError: if it is anything else.
    """
    token = token.strip()
    if _NUMBER.fullmatch(token) is None:
        raise WireError(where, f"{token[:40]!r} is not a number")
    return float(token)


def hexadecimal(token: str, where: str) -> int:
    """Read a number of at most eight hexadecimal digits after `0x`.

    Raises:
        WireError: if it is anything else.
    """
    token = token.strip()
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", token) is None:
        raise WireError(where, f"{token[:40]!r} is not a hexadecimal number")
    return int(token, 16)


def decode(content: bytes) -> str:
    """Turn bytes into text; what is not UTF-8 becomes U+FFFD."""
    return content.decode("utf-8", errors="replace")


def shown(text: str) -> str:
    """Make a text fit to be shown: control characters become one space, ends are cut, at most `MAX_TEXT`."""
    return _UNSHOWABLE.sub(" ", text).strip()[:MAX_TEXT].strip()


def line(content: bytes, where: str) -> str:
    """Return the one line of a file, fit to be shown. A trailing NUL, as device trees have, is cut.

    Raises:
        WireError: if nothing is left.
    """
    text = shown(decode(content))
    if not text:
        raise WireError(where, "empty")
    return text
