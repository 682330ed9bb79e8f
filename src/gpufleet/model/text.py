"""Sanitizing of texts from untrusted sources."""

import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters that make a spreadsheet treat a text as a formula (OWASP, CSV injection)."""


def clean(text: str) -> str:
    """Return the text without control characters: they can control a terminal and are not part of a name."""
    if text.isprintable():
        return text
    return "".join(character for character in text if unicodedata.category(character) != "Cc")


def printable(text: str) -> str:
    """Return the text with `?` for each character without a shape of its own, such as control and direction marks."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def bounded(text: str, most: int) -> str:
    """Return the text without control characters, and at most `most` characters of it; the last is then `…`."""
    text = clean(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def escape_formula(text: str) -> str:
    """Return the text with an apostrophe before it if a spreadsheet would evaluate it."""
    return f"'{text}" if text.startswith(_FORMULA) else text
