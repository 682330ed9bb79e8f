"""Words of nvidia-smi: names made alike, texts fit to be shown, and what it prints instead of a value.

Times as nvidia-smi prints them.
"""

import datetime as dt
import re
from collections.abc import Iterable

from gpufleet.codecs.nvidia_smi.records import MAX_BYTES, MAX_LINES
from gpufleet.model.absence import Reason
from gpufleet.model.errors import WireLimitError

MAX_SHOWN = 256
"""Letters of a message that are shown."""

MAX_MESSAGES = 16
"""Messages of one output that are kept."""

_BETWEEN = re.compile(r"[^a-z0-9]+")
_UNSHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")

TOKENS = {
    "n/a": Reason.NOT_SUPPORTED,
    "not supported": Reason.NOT_SUPPORTED,
    "requested functionality has been deprecated": Reason.NOT_SUPPORTED,
    "function not found": Reason.NOT_IN_DRIVER,
    "insufficient permissions": Reason.NOT_PERMITTED,
    "no permission": Reason.NOT_PERMITTED,
    "not found": Reason.NO_DATA,
    "no data": Reason.NO_DATA,
    "not ready": Reason.NO_DATA,
    "": Reason.NO_DATA,
    "gpu is lost": Reason.GPU_LOST,
    "gpu requires reset": Reason.RESET_REQUIRED,
    "reset required": Reason.RESET_REQUIRED,
    "timeout": Reason.TIMEOUT,
    "unknown error": Reason.DRIVER_ERROR,
    "err!": Reason.DRIVER_ERROR,
    "error": Reason.DRIVER_ERROR,
}
"""What is printed where there is no value, without brackets and in lower case.

Seen in captures of drivers 535 to 595: `N/A`, `[N/A]`, the deprecation, `Insufficient Permissions`. The others are
nvmlErrorString's words for the code in question, as nvidia-smi's manual page and public logs show them.
"""


def slug(name: str) -> str:
    """Make a name of XML or `-q` into the one form that both share: `FB Memory Usage` to `fb_memory_usage`."""
    return _BETWEEN.sub("_", name.lower()).strip("_")


def token(text: str) -> Reason | None:
    """Return why there is no value, or None if the text is one."""
    return TOKENS.get(text.strip().removeprefix("[").removesuffix("]").strip().lower())


def shown(text: str) -> str:
    """Make a text fit to be shown: control characters become one space, ends are cut, at most `MAX_SHOWN` letters."""
    text = _UNSHOWABLE.sub(" ", text[: 4 * MAX_SHOWN]).strip()
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


class Messages:
    """Collects lines that belong to no device: shown, none empty, none twice, a bounded number of them."""

    def __init__(self) -> None:
        self._kept: dict[str, None] = {}
        self._more = 0

    def add(self, line: str) -> None:
        """Add one; past `MAX_MESSAGES` it is only counted."""
        words = shown(line)
        if not words or words in self._kept:
            return
        if len(self._kept) < MAX_MESSAGES:
            self._kept[words] = None
        else:
            self._more += 1

    def told(self) -> tuple[str, ...]:
        """Return them in the order in which they came, and how many more there were."""
        return (*self._kept, f"and {self._more} more") if self._more else tuple(self._kept)


def messages_of(lines: Iterable[str]) -> tuple[str, ...]:
    """Return lines as messages."""
    messages = Messages()
    for line in lines:
        messages.add(line)
    return messages.told()


def split_lines(content: bytes, where: str) -> list[str]:
    """Return the lines of an output; the last one is empty if it ends with a line feed.

    Raises:
        WireLimitError: past `MAX_BYTES` or `MAX_LINES`.
    """
    if len(content) > MAX_BYTES:
        raise WireLimitError(where, f"{len(content)} bytes, more than {MAX_BYTES}")
    lines = content.count(b"\n")
    if lines > MAX_LINES:
        raise WireLimitError(where, f"{lines} lines, more than {MAX_LINES}")
    return decode(content).split("\n")


def decode(content: bytes) -> str:
    """Turn bytes into text, without the mark that some editors put first; what is not UTF-8 becomes U+FFFD."""
    return content.decode("utf-8-sig", errors="replace")


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
