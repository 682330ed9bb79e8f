"""Texts: sanitizing of those from untrusted sources, and numbers with nouns."""

import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters that make a spreadsheet treat a text as a formula (OWASP, CSV injection)."""


_REPLACED = {"Cc": "", "Cf": "?", "Cs": "?", "Zl": "?", "Zp": "?"}
"""Replacement of each character by its Unicode category.

Cc are control characters. Cf are invisible format characters, such as direction marks and zero-width characters. Cs are
lone surrogates, Zl and Zp are separators of lines and paragraphs.
"""


def clean(text: str) -> str:
    """Return the text without control characters, and with `?` for each invisible format character.

    Control characters can control a terminal and are not part of a name. Format characters can change the order of the
    text around them, or make two names look equal: the `?` keeps such names different.
    """
    if text.isprintable():
        return text
    return "".join(_REPLACED.get(unicodedata.category(character), character) for character in text)


def printable(text: str) -> str:
    """Return the text with `?` for each character without a shape of its own, such as control and direction marks."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def bounded(text: str, most: int) -> str:
    """Return the cleaned text (`clean`), and at most `most` characters of it; the last is then `…`."""
    text = clean(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def counted(count: int, noun: str) -> str:
    """Return a number with a regular noun, such as `1 machine` or `2 machines`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def escape_formula(text: str) -> str:
    """Return the text with an apostrophe before it if a spreadsheet would evaluate it."""
    return f"'{text}" if text.startswith(_FORMULA) else text
