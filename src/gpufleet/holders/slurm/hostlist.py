"""SLURM's host lists, such as `cw-h100-220-[037,039-041],login1`: expansion and membership. Pure."""

import re

from gpufleet.model.errors import WireError

MAX_NAME = 256
"""Maximum length of a host name."""

_MAX_BRACKETS = 8
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z", re.ASCII)
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)

_Range = tuple[int, int, int]  # first, last, minimum number of digits
_Part = str | tuple[_Range, ...]


def expand(text: str, most: int) -> tuple[str, ...]:
    """Return the names of a list in order, with duplicates.

    Raises:
        WireError: if the list is malformed, or has more than `most` names.
    """
    names: list[str] = []
    for term in _terms(text):
        grown = [""]
        for part in _parts(term):
            if isinstance(part, str):
                grown = [name + part for name in grown]
                continue
            if len(grown) * sum(last - first + 1 for first, last, _ in part) > most:
                raise WireError("hostlist", f"{text[:80]!r} has more than {most} names")
            values = [f"{value:0{width}d}" for first, last, width in part for value in range(first, last + 1)]
            grown = [name + value for name in grown for value in values]
        names += grown
        if len(names) > most:
            raise WireError("hostlist", f"{text[:80]!r} has more than {most} names")
    return tuple(names)


def contains(text: str, name: str) -> bool:
    """Return whether a list has a name, without expanding the list.

    Raises:
        WireError: if the list is malformed.
    """
    if len(name) > MAX_NAME:
        return False
    return any(_matches(_parts(term), name) for term in _terms(text))


def _matches(parts: list[_Part], name: str) -> bool:
    """Return whether a name is of a term: the offsets in the name that the parts up to now can end at."""
    offsets = {0}
    for part in parts:
        if isinstance(part, str):
            offsets = {at + len(part) for at in offsets if name.startswith(part, at)}
        else:
            offsets = {end for at in offsets for end in _ends(part, name, at)}
    return len(name) in offsets


def _ends(ranges: tuple[_Range, ...], name: str, at: int) -> list[int]:
    match = _DIGITS.match(name, at)
    if match is None:
        return []
    digits = match[0]
    return [
        at + length
        for length in range(1, len(digits) + 1)
        if any(
            first <= int(digits[:length]) <= last and f"{int(digits[:length]):0{width}d}" == digits[:length]
            for first, last, width in ranges
        )
    ]


def _terms(text: str) -> list[str]:
    """Split a list at the commas outside of brackets."""
    terms: list[str] = []
    depth = start = 0
    for at, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            terms.append(text[start:at])
            start = at + 1
        if depth not in (0, 1):
            raise WireError("hostlist", f"{text[:80]!r}: unbalanced brackets")
    if depth:
        raise WireError("hostlist", f"{text[:80]!r}: unbalanced brackets")
    terms.append(text[start:])
    return [term for term in terms if term]


def _parts(term: str) -> list[_Part]:
    parts: list[_Part] = []
    rest = term
    while rest:
        literal, bracket, rest = rest.partition("[")
        if literal:
            parts.append(literal)
        if bracket:
            inside, _, rest = rest.partition("]")
            parts.append(tuple(_range(piece, term) for piece in inside.split(",")))
    if len(parts) > 2 * _MAX_BRACKETS:
        raise WireError("hostlist", f"{term[:80]!r} has more than {_MAX_BRACKETS} brackets")
    return parts


def _range(text: str, term: str) -> _Range:
    match = _RANGE.match(text)
    if match is None:
        raise WireError("hostlist", f"{term[:80]!r}: {text[:20]!r} is no range of numbers")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise WireError("hostlist", f"{term[:80]!r}: the range {text[:40]!r} is descending")
    return first, last, len(match[1])
