"""Texts that come from strangers."""

import unicodedata


def clean(text: str) -> str:
    """Return the text without control characters: they can drive a terminal, and name nothing."""
    if text.isprintable():
        return text
    return "".join(character for character in text if unicodedata.category(character) != "Cc")
