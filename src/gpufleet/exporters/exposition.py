"""A page of the Prometheus text format: families in the order of their declaration, series within them.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4).
"""

from collections.abc import Mapping

_NOT_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


class Page:
    """Collects series; a family without series does not appear."""

    def __init__(self) -> None:
        self._heads: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}

    def declare(self, family: str, kind: str, words: str) -> None:
        """Give a family its type and help, and its place on the page."""
        text = words.replace("\\", r"\\").replace("\n", r"\n")
        self._heads[family] = f"# HELP {family} {text}\n# TYPE {family} {kind}\n"
        self._lines[family] = []

    def add(self, family: str, labels: str, value: float) -> None:
        """Add one series; `labels` as `labelled` writes them, or empty for none."""
        self.add_text(family, labels, number(value))

    def add_text(self, family: str, labels: str, value: str) -> None:
        """Add one series whose value is written already."""
        series = f"{family}{{{labels}}}" if labels else family
        self._lines[family].append(f"{series} {value}\n")

    def encode(self) -> bytes:
        """Return the page."""
        parts: list[str] = []
        for family, lines in self._lines.items():
            if lines:
                parts.append(self._heads[family])
                parts += lines
        return "".join(parts).encode()


def labelled(labels: Mapping[str, str]) -> str:
    """Write labels, escaped, without the braces."""
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels.items()])


def number(value: float) -> str:
    """Write a number; integers keep every digit."""
    text = repr(value)
    return _NOT_FINITE.get(text, text)


def _escape(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    # What cannot be encoded (a lone surrogate out of a file name) must not cost the page.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
