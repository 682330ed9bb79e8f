"""How long to wait before asking again. Pure.

So many in a second, and no more.
"""

import datetime as dt
import email.utils
import time
from collections.abc import Callable

FIRST_SECONDS = 1.0
MAX_SECONDS = 15.0
"""So long may a hub be back unnoticed. A fleet that waits asks it no more often than one that sends."""
MAX_RETRY_AFTER_SECONDS = 3600.0
"""A server that asks for more patience than this is asked again all the same."""


def retry_delay(failures: int, retry_after: float | None, jitter: float) -> float:
    """Return seconds to wait: doubled with each failure in a row, never less than the server asked for.

    Args:
        failures: in a row, 1 or more.
        retry_after: what the server asked for, or None.
        jitter: from 0 to 1, spreads the delay over its upper half, so that a fleet does not return as one.
    """
    ceiling = min(MAX_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 30))
    delay = ceiling * (0.5 + 0.5 * jitter)
    return delay if retry_after is None else max(delay, min(retry_after, MAX_RETRY_AFTER_SECONDS))


def parse_retry_after(header: str, now: dt.datetime) -> float | None:
    """Read a Retry-After header (RFC 9110, 10.2.3): seconds or a date; None for neither."""
    if header.isascii() and header.isdigit():
        return min(float(header[:10]), MAX_RETRY_AFTER_SECONDS)
    try:
        at = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=dt.UTC)) - now).total_seconds())


class Pace:
    """Spreads what may wait evenly; a pause saves nothing up."""

    def __init__(self, per_second: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take the rate, above 0, and a clock of seconds."""
        self._seconds = 1 / per_second
        self._monotonic = monotonic
        self._next = monotonic()

    @property
    def delay(self) -> float:
        """Seconds until the next may go; 0 when it may now."""
        return max(0.0, self._next - self._monotonic())

    def step(self) -> None:
        """Say that one goes now."""
        self._next = max(self._next, self._monotonic()) + self._seconds
