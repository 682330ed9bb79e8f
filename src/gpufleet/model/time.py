"""Instants: nanoseconds since 1970 UTC as integers internally, RFC 3339 text in documents."""

import datetime as dt

NANOS = 1_000_000_000

LATEST = 2**63 - 1
"""Last representable instant, in the year 2262."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def to_datetime(at_ns: int) -> dt.datetime:
    """Turn an instant into a UTC datetime, cut to microseconds (the resolution of documents)."""
    return _EPOCH + dt.timedelta(microseconds=at_ns // 1000)


def to_ns(at: dt.datetime) -> int:
    """Turn an aware datetime into an instant.

    Raises:
        ValueError: if `at` has no time zone; a naive time is ambiguous.
    """
    if at.tzinfo is None:
        raise ValueError(f"{at.isoformat()} has no time zone: write it with Z or an offset")
    return (at - _EPOCH) // dt.timedelta(microseconds=1) * 1000
