"""Retry delays and rate limiting. No I/O except the injected clock."""

import datetime as dt
import email.utils
import time
from collections.abc import Callable

FIRST_SECONDS = 1.0
MAX_SECONDS = 15.0
"""Longest delay between retries, and so the longest time until a recovered hub is noticed.

It also keeps a fleet of retrying senders from sending more requests than a healthy fleet.
"""
MAX_RETRY_AFTER_SECONDS = 3600.0
"""Upper bound on a server's Retry-After; a longer delay is cut to this."""


def retry_delay(failures: int, retry_after: float | None, jitter: float) -> float:
    """Return the seconds until the next attempt: exponential backoff, at least the server's Retry-After.

    Args:
        failures: consecutive failures, 1 or more.
        retry_after: seconds from the server, or None.
        jitter: 0 to 1, spreads the delay over its upper half so that the senders of a fleet do not retry together.
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


class Pacer:
    """A rate limiter that spaces events evenly and allows no burst after a pause."""

    def __init__(self, per_second: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Set the rate, above 0, and a clock that returns seconds."""
        self._seconds = 1 / per_second
        self._monotonic = monotonic
        self._next = monotonic()

    @property
    def delay(self) -> float:
        """Seconds until the next event is allowed; 0 if it is allowed now."""
        return max(0.0, self._next - self._monotonic())

    def step(self) -> None:
        """Record one event."""
        self._next = max(self._next, self._monotonic()) + self._seconds
