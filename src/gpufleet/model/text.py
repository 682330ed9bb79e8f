"""Texts that come from strangers."""

import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a spreadsheet may take the rest of a text for a formula after (OWASP, CSV injection)."""


def clean(text: str) -> str:
    """Return the text without control characters: they can drive a terminal, and name nothing."""
    if text.isprintable():
        return text
    return "".join(character for character in text if unicodedata.category(character) != "Cc")


def no_formula(text: str) -> str:
    """Return the text with an apostrophe before it if a spreadsheet would calculate it."""
    return f"'{text}" if text.startswith(_FORMULA) else text
