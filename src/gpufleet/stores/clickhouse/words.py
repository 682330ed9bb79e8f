"""What is said where the database says no: its own words, without what the client library wraps them in."""

import logging
import re
from collections.abc import Mapping

MOST = 1000
"""Characters of the words."""

_WRAPPED = re.compile(
    r"^Received ClickHouse exception, code: \d+, server response: |\(version [\d.]+(?: \([^)]*\))?\)|\(for url [^)]*\)$"
)
_POOL = re.compile(r"^[\w.]+(?:Pool)?\(host=[^)]*\): (?:Max retries exceeded with url: .*\(Caused by )?")
_SETTING = re.compile(r"^Setting \w+ is readonly")

_HINTS: Mapping[str, str] = {
    "(AUTHENTICATION_FAILED)": "look at user and password of the DSN; what stands in them but letters and digits is "
    "written as %XX",
    "(UNKNOWN_DATABASE)": "make it first: CREATE DATABASE",
    "(READONLY)": "the hub's user has to write: docs/operations.md has its grants",
    "(ACCESS_DENIED)": "docs/operations.md has the grants that the hub's user needs",
}
"""What to do, by the name of the error."""


def words_of(error: BaseException) -> str:
    """Return the words of an error of the client library in one line, the same each time that the same happens.

    A server that does not answer is told of by the library with the address of the request: a number of its own each
    time, and every parameter.
    """
    cause = error.__cause__
    reason = getattr(cause, "reason", None) or cause
    if type(error).__name__ == "OperationalError" and reason is not None:
        return f"the server does not answer: {_POOL.sub('', _line(reason))}"[:MOST]
    words = " ".join(_WRAPPED.sub("", _line(error)).split()) or type(error).__name__
    hint = next((hint for name, hint in _HINTS.items() if name in words), "")
    if _SETTING.match(words):
        hint = _HINTS["(READONLY)"]
    return f"{words[:MOST]}; {hint}" if hint else words[:MOST]


def quieten() -> None:
    """Have the libraries under a server's handles keep to themselves what is raised, and told once, anyway."""
    for name in ("urllib3.connectionpool", "clickhouse_connect"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _line(error: object) -> str:
    return " ".join(str(error).split())
