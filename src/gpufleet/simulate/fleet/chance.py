"""Chance without chance: numbers that look random and are always the same for the same words."""

import hashlib
import uuid

Word = int | str


def digits(count: int, *words: Word) -> str:
    """Return hexadecimal digits, up to 128, that belong to these words."""
    return hashlib.blake2b("/".join(map(str, words)).encode(), digest_size=64).hexdigest()[:count]


def number(below: int, *words: Word) -> int:
    """Return an integer from 0 to `below` - 1 that belongs to these words."""
    return int(digits(16, *words), 16) % below


def share(*words: Word) -> float:
    """Return a number from 0 (included) to 1 (not included) that belongs to these words."""
    return int(digits(13, *words), 16) / 16**13


def between(low: float, high: float, *words: Word) -> float:
    """Return a number from `low` to `high` that belongs to these words."""
    return low + (high - low) * share(*words)


def uuid_of(*words: Word) -> str:
    """Return a UUID of version 4 that belongs to these words."""
    return str(uuid.UUID(digits(32, *words), version=4))
