"""Words of nvidia-smi: names made alike, texts fit to be shown, and what it prints instead of a value."""

import re

from gpufleet.model.absence import Reason

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


def messages_of(lines: list[str]) -> tuple[str, ...]:
    """Return lines as messages: shown, none empty, none twice, at most `MAX_MESSAGES`, the rest counted."""
    kept = list(dict.fromkeys(words for line in lines if (words := shown(line))))
    if len(kept) > MAX_MESSAGES:
        kept[MAX_MESSAGES - 1 :] = [f"and {len(kept) - MAX_MESSAGES + 1} more"]
    return tuple(kept)


def decode(content: bytes) -> str:
    """Turn bytes into text; what is not UTF-8 becomes U+FFFD."""
    return content.decode("utf-8", errors="replace")
