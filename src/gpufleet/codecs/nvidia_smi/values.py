"""Values of nvidia-smi: normalized names, printable texts, versions and timestamps."""

import datetime as dt
import re
from collections.abc import Iterable

from gpufleet.codecs.nvidia_smi.records import MAX_BYTES, MAX_LINES
from gpufleet.model.errors import WireLimitError

MAX_SHOWN = 256
"""Maximum length of a message."""

MAX_MESSAGES = 16
"""Maximum number of messages kept per output."""

_BETWEEN = re.compile(r"[^a-z0-9]+")
_UNSHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def slug(name: str) -> str:
    """Normalize a name of XML or `-q`: `FB Memory Usage` to `fb_memory_usage`."""
    return _BETWEEN.sub("_", name.lower()).strip("_")


_VERSION = re.compile(r"([0-9][0-9A-Za-z.]{0,31})(?:\s*\[(.*)\])?\s*", re.ASCII)


def version_of(text: str) -> tuple[str, str]:
    """Return a printed version, and the note in brackets that drivers from 610 on print behind it; empty if none.

    A text that is not a version is returned unchanged.
    """
    found = _VERSION.fullmatch(text.strip())
    return (found[1], shown(found[2] or "")) if found is not None else (text.strip(), "")


def shown(text: str) -> str:
    """Return a printable text: control characters become a space, ends are stripped, at most `MAX_SHOWN` characters."""
    text = _UNSHOWABLE.sub(" ", text[: 4 * MAX_SHOWN]).strip()
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


class OutputMessages:
    """Bounded collection of distinct, printable, non-empty message lines."""

    def __init__(self) -> None:
        self._kept: dict[str, None] = {}
        self._more = 0

    def add(self, line: str) -> None:
        """Add a message; beyond `MAX_MESSAGES` messages are only counted."""
        message = shown(line)
        if not message or message in self._kept:
            return
        if len(self._kept) < MAX_MESSAGES:
            self._kept[message] = None
        else:
            self._more += 1

    def lines(self) -> tuple[str, ...]:
        """Return the messages in order, with a count of the omitted ones."""
        return (*self._kept, f"and {self._more} more") if self._more else tuple(self._kept)


def messages_of(lines: Iterable[str]) -> tuple[str, ...]:
    """Return lines as messages."""
    messages = OutputMessages()
    for line in lines:
        messages.add(line)
    return messages.lines()


def split_lines(content: bytes, where: str) -> list[str]:
    """Return the lines of an output; the last one is empty if it ends with a line feed.

    Raises:
        WireLimitError: if it exceeds `MAX_BYTES` or `MAX_LINES`.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError(where, f"{len(content)} bytes, more than {MAX_BYTES}")
    lines = content.count(b"\n")
    if lines > MAX_LINES:
        raise WireLimitError(where, f"{lines} lines, more than {MAX_LINES}")
    return decode(content).split("\n")


def decode(content: bytes) -> str:
    """Decode UTF-8 without a byte order mark; invalid bytes become U+FFFD."""
    return content.decode("utf-8-sig", errors="replace")


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_OF_LOG = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) ([0-9]{4})")
_OF_CSV = re.compile(r"([0-9]{4})/([0-9]{2})/([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{3})")


def parse_time(text: str) -> dt.datetime | None:
    """Return the local time of a timestamp, without a zone, or None if the text is not a timestamp.

    Formats: `Fri Jul  3 22:10:45 2026` in `-q`, `2026/07/03 22:10:46.109` in CSV. Neither has a zone.
    """
    try:
        if (of_csv := _OF_CSV.fullmatch(text.strip())) is not None:
            year, month, day, hour, minute, second, milli = (int(part) for part in of_csv.groups())
            return dt.datetime(year, month, day, hour, minute, second, milli * 1000)  # noqa: DTZ001 - it has no zone
        if (of_log := _OF_LOG.fullmatch(text.strip())) is not None and of_log[1].lower() in _MONTHS:
            day, hour, minute, second, year = (int(part) for part in of_log.groups()[1:])
            return dt.datetime(year, _MONTHS.index(of_log[1].lower()) + 1, day, hour, minute, second)  # noqa: DTZ001
    except ValueError:  # such as June 31
        return None
    return None
