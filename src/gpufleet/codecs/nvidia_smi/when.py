"""Times as nvidia-smi prints them."""

import datetime as dt
import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_OF_LOG = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) ([0-9]{4})")
_OF_CSV = re.compile(r"([0-9]{4})/([0-9]{2})/([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{3})")


def parse_time(text: str) -> dt.datetime | None:
    """Return the instant, or None if the text is none.

    `Fri Jul  3 22:10:45 2026` of `-q`, `2026/07/03 22:10:46.109` of CSV. Both are the machine's local time without
    its zone; it is taken as UTC, which most servers keep.
    """
    try:
        if (of_csv := _OF_CSV.fullmatch(text.strip())) is not None:
            year, month, day, hour, minute, second, milli = (int(part) for part in of_csv.groups())
            return dt.datetime(year, month, day, hour, minute, second, milli * 1000, tzinfo=dt.UTC)
        if (of_log := _OF_LOG.fullmatch(text.strip())) is not None and of_log[1].lower() in _MONTHS:
            day, hour, minute, second, year = (int(part) for part in of_log.groups()[1:])
            return dt.datetime(year, _MONTHS.index(of_log[1].lower()) + 1, day, hour, minute, second, tzinfo=dt.UTC)
    except ValueError:  # the 31st of June
        return None
    return None
