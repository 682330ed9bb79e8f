"""Time zone of local times that nvidia-smi prints without one."""

import datetime as dt
import re
import zoneinfo
from typing import NamedTuple

from gpufleet.model.time import to_ns

_OFFSET = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})", re.ASCII)

_STEP = dt.timedelta(minutes=15)
"""Unit of all offsets in use."""

_MAX_OFFSET = dt.timedelta(hours=14)
MAX_DELAY = dt.timedelta(minutes=5)
"""Time between the head of a capture file and its first output within which both show one zone."""


class LocalTimeZone(NamedTuple):
    """Zone of local times, and its origin.

    Attributes:
        zone: the zone.
        origin: how the zone is known, or that it is assumed.
        is_known: whether it is not an assumption.
    """

    zone: dt.tzinfo
    origin: str
    is_known: bool = True

    def to_ns(self, local: dt.datetime) -> int:
        """Return a local time in nanoseconds since 1970."""
        return to_ns(local.replace(tzinfo=self.zone))


ASSUMED = LocalTimeZone(
    dt.UTC, "UTC is assumed: the output has local time without a zone; --timezone sets it", is_known=False
)


def parse_zone(text: str) -> dt.tzinfo:
    """Return the zone of a name such as `Europe/Berlin`, `UTC`, or of an offset such as `+02:00`.

    Raises:
        ValueError: if there is no such zone.
    """
    found = _OFFSET.fullmatch(text)
    if found is not None:
        offset = dt.timedelta(hours=int(found[2]), minutes=int(found[3]))
        if offset > _MAX_OFFSET or int(found[3]) > 59:
            raise ValueError(f"no time zone has the offset {text}")
        return dt.timezone(-offset if found[1] == "-" else offset)
    if text in ("UTC", "Z"):
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        wanted = "a name such as Europe/Berlin, or an offset such as +02:00"
        raise ValueError(f"no time zone {text[:64]!r}: use {wanted}") from None


def zone_of_capture(collected: dt.datetime | None, first: dt.datetime | None) -> LocalTimeZone | None:
    """Return the zone by the time in the head of a capture file and the first local time below, or None.

    Both are at most `MAX_DELAY` apart, so that their difference is the offset of the zone.
    """
    if collected is None or first is None:
        return None
    difference = first.replace(tzinfo=dt.UTC) - collected
    offset = round(difference / _STEP) * _STEP
    if abs(offset) > _MAX_OFFSET or abs(difference - offset) > MAX_DELAY:
        return None
    zone = dt.timezone(offset)
    return LocalTimeZone(zone, f"{zone.tzname(None)}, by the time in the head of the file")
