"""Times and durations on the command line."""

import datetime as dt
import re

import msgspec

from gpufleet.cli.options import OptionError

_SPAN = re.compile(r"(\d{1,6})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_span(option: str, text: str) -> dt.timedelta:
    """Parse a duration such as 30s, 10m, 12h or 90d.

    Raises:
        OptionError: if the text is not a duration.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise OptionError(option, f"{text!r} is not a duration such as 30s, 15m, 12h or 90d")
    return dt.timedelta(**{_UNITS[found[2]]: int(found[1])})


def parse_time(option: str, text: str, now: dt.datetime) -> dt.datetime:
    """Parse an RFC 3339 time, or a duration before now.

    Raises:
        OptionError: if the text is neither, or the time is before the year 1970.
    """
    if _SPAN.fullmatch(text):
        try:
            at = now - parse_span(option, text)
        except OverflowError as error:
            raise OptionError(option, f"{text!r} is longer than the calendar") from error
    else:
        try:
            at = msgspec.convert(text, dt.datetime)
        except msgspec.ValidationError as error:
            raise OptionError(
                option, f"{text!r} is not an RFC 3339 time such as 2026-01-31T12:00:00Z, or a duration such as 10m"
            ) from error
        if at.tzinfo is None:
            raise OptionError(option, f"{text!r} has no time zone: add Z or an offset such as +01:00")
    if at.timestamp() < 0:
        raise OptionError(option, f"{text!r} is before 1970")
    return at


def time_parameter(option: str, text: str | None) -> str | None:
    """Return the RFC 3339 text of an option for a request, or None if the option is not set.

    Raises:
        OptionError: as `parse_time`.
    """
    if text is None:
        return None
    at = parse_time(option, text, dt.datetime.now(dt.UTC))
    return at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
