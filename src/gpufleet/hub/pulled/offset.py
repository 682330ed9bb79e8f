"""Spreading questions over time. Pure."""

import zlib


def offset(name: str, interval_seconds: float) -> float:
    """Return how long after the start a target is asked first, in seconds.

    Always the same for one target, and another for each: a thousand of them are not asked at one instant.
    """
    return zlib.crc32(name.encode()) / 2**32 * interval_seconds
