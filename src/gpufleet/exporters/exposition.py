"""Pages of the Prometheus text format and of OpenMetrics: families in the order of their declaration, series in them.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4) and
https://prometheus.io/docs/specs/om/open_metrics_spec/ (version 1.0.0). Lines of series are the same in both; what
stands before them differs, and OpenMetrics says where the page ends.
"""

import datetime as dt
import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_NUMBERS = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf", "-0.0": "0.0"}


class Syntax(enum.Enum):
    """How a page is written; the value is its media type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Head(NamedTuple):
    """What stands before the series of a family, in either syntax."""

    text: bytes
    openmetrics: bytes

    @classmethod
    def of(cls, family: str, kind: str, words: str, unit: str = "") -> "Head":
        """Write it.

        Args:
            family: name of its series.
            kind: `counter` or `gauge`. In OpenMetrics a counter's series end in `_total` and the family is named
                without it; one that does not (another project's name) is of unknown type there.
            words: its help.
            unit: base unit; told in OpenMetrics if the family's name ends in it, as the format asks.
        """
        text = words.replace("\\", r"\\").replace("\n", r"\n")
        base, om_kind = family, kind
        if kind == "counter":
            base = family.removesuffix("_total")
            om_kind = kind if base != family else "unknown"
        told = f"# UNIT {base} {unit}\n" if unit and base.endswith(f"_{unit}") else ""
        quoted = text.replace('"', r"\"")
        return cls(
            f"# HELP {family} {text}\n# TYPE {family} {kind}\n".encode(),
            f"# HELP {base} {quoted}\n# TYPE {base} {om_kind}\n{told}".encode(),
        )


Section = tuple[Head, bytes]
"""A family: its head, and its lines; without lines it does not appear."""


def write_page(sections: Iterable[Section], syntax: Syntax) -> bytes:
    """Return the page of these families."""
    parts: list[bytes] = []
    for head, lines in sections:
        if lines:
            parts += (head.openmetrics if syntax is Syntax.OPENMETRICS else head.text, lines)
    if syntax is Syntax.OPENMETRICS:
        parts.append(b"# EOF\n")
    return b"".join(parts)


class Page:
    """Collects series; a family without series does not appear.

    `at` is when a value was measured, None for now. The page leaves it out: a scrape has its own time. What writes
    series to another system keeps it.
    """

    def __init__(self) -> None:
        self._heads: dict[str, Head] = {}
        self._lines: dict[str, list[str]] = {}

    def declare(self, family: str, kind: str, words: str, unit: str = "") -> None:
        """Give a family its type, help and unit as `Head.of` has them, and its place on the page."""
        self._heads[family] = Head.of(family, kind, words, unit)
        self._lines[family] = []

    def add(self, family: str, labels: str, value: float, at: dt.datetime | None = None) -> None:
        """Add one series; `labels` as `labelled` writes them, or empty for none."""
        self.add_text(family, labels, number(value), at)

    def add_text(self, family: str, labels: str, value: str, at: dt.datetime | None = None) -> None:
        """Add one series whose value is written already."""
        self._lines[family].append(line(family, labels, value))

    def sections(self) -> list[Section]:
        """Return the families."""
        return [(self._heads[family], "".join(lines).encode()) for family, lines in self._lines.items()]

    def encode(self, syntax: Syntax = Syntax.TEXT) -> bytes:
        """Return the page."""
        return write_page(self.sections(), syntax)


def line(family: str, labels: str, value: str) -> str:
    """Write one series; `labels` as `labelled` writes them, or empty for none."""
    return f"{family}{{{labels}}} {value}\n" if labels else f"{family} {value}\n"


def labelled(labels: Mapping[str, str]) -> str:
    """Write labels, escaped, without the braces."""
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels.items()])


def number(value: float) -> str:
    """Write a number; integers keep every digit."""
    text = repr(value)
    return _NUMBERS.get(text, text)


def _escape(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    # What cannot be encoded (a lone surrogate out of a file name) must not cost the page.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
