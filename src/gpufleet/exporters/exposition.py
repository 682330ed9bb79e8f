"""Metrics pages in the Prometheus text format and in OpenMetrics, with families in the order of declaration.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4) and
https://prometheus.io/docs/specs/om/open_metrics_spec/ (version 1.0.0). Samples are written alike in both; the
family headers differ, and OpenMetrics ends with `# EOF`.
"""

import datetime as dt
import enum
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
_NUMBERS = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf", "-0.0": "0.0"}


class PageFormat(enum.Enum):
    """Format of a page; the value is its media type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class FamilyHeader(NamedTuple):
    """HELP, TYPE and UNIT lines of a family, in both formats."""

    text: bytes
    openmetrics: bytes

    @classmethod
    def of(cls, family: str, kind: str, help_: str, unit: str = "") -> "FamilyHeader":
        """Write the header of a family.

        Args:
            family: name of the series.
            kind: `counter` or `gauge`. In OpenMetrics the series of a counter end in `_total` and the family name omits
                it. A counter of another project without `_total` has type `unknown`.
            help_: the help text.
            unit: base unit, written in OpenMetrics only if the family name ends in it, as the format requires.
        """
        text = help_.replace("\\", r"\\").replace("\n", r"\n")
        base, om_kind = family, kind
        if kind == "counter":
            base = family.removesuffix("_total")
            om_kind = kind if base != family else "unknown"
        unit_line = f"# UNIT {base} {unit}\n" if unit and base.endswith(f"_{unit}") else ""
        quoted = text.replace('"', r"\"")
        return cls(
            f"# HELP {family} {text}\n# TYPE {family} {kind}\n".encode(),
            f"# HELP {base} {quoted}\n# TYPE {base} {om_kind}\n{unit_line}".encode(),
        )


Section = tuple[FamilyHeader, bytes]
"""Header and sample lines of a family. A family without lines is omitted from the page."""


def write_page(sections: Iterable[Section], syntax: PageFormat) -> bytes:
    """Join families to a page."""
    parts: list[bytes] = []
    for head, lines in sections:
        if lines:
            parts += (head.openmetrics if syntax is PageFormat.OPENMETRICS else head.text, lines)
    if syntax is PageFormat.OPENMETRICS:
        parts.append(b"# EOF\n")
    return b"".join(parts)


class MetricsPage:
    """Collector of series by family. A family without series is omitted.

    `at` is the instant of measurement, None for now. The page omits it, because a scrape has its own time. A subclass
    that sends series to another system keeps it.
    """

    def __init__(self) -> None:
        self._heads: dict[str, FamilyHeader] = {}
        self._lines: dict[str, list[str]] = {}

    def declare(self, family: str, kind: str, help_: str, unit: str = "") -> None:
        """Declare a family and its position on the page; arguments as in `FamilyHeader.of`."""
        self._heads[family] = FamilyHeader.of(family, kind, help_, unit)
        self._lines[family] = []

    def add(self, family: str, labels: str, value: float, at: dt.datetime | None = None) -> None:
        """Add one series; `labels` as written by `format_labels`, or empty."""
        self.add_text(family, labels, format_number(value), at)

    def add_text(self, family: str, labels: str, value: str, at: dt.datetime | None = None) -> None:
        """Add one series with a formatted value."""
        self._lines[family].append(format_sample(family, labels, value))

    def sections(self) -> list[Section]:
        """Return the families in order of declaration."""
        return [(self._heads[family], "".join(lines).encode()) for family, lines in self._lines.items()]

    def encode(self, syntax: PageFormat = PageFormat.TEXT) -> bytes:
        """Return the page in a format."""
        return write_page(self.sections(), syntax)


def format_sample(family: str, labels: str, value: str) -> str:
    """Write one sample; `labels` as written by `format_labels`, or empty."""
    return f"{family}{{{labels}}} {value}\n" if labels else f"{family} {value}\n"


def format_labels(labels: Mapping[str, str]) -> str:
    """Write labels, escaped, without braces."""
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels.items()])


def prometheus_name(name: str) -> str:
    """Return a name of another convention as a name of a metric or label: with `_` for each other character."""
    return _NOT_IN_NAMES.sub("_", name)


def format_number(value: float) -> str:
    """Write a number. Integers keep every digit."""
    text = repr(value)
    return _NUMBERS.get(text, text)


def _escape(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    # A text that cannot be encoded (a lone surrogate from a file name) must not fail the page.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
