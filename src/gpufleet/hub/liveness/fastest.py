"""The least of the newest numbers of a row, without keeping all of them. Pure.

Only what is less than everything after it can ever be the least of the newest: of 64 numbers in no order that is five.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """One of the numbers, and its place in the row."""

    place: int
    number: int


Fastest = tuple[Entry, ...]
"""Those that may yet be the least, in their order; the last is the newest of all."""


def begun(number: int) -> Fastest:
    """Return a row of one."""
    return (Entry(0, number),)


def followed(row: Fastest, number: int, keep: int) -> Fastest:
    """Return the row with one more number, of the newest `keep`."""
    place = row[-1].place + 1
    return (*(one for one in row if one.number < number and one.place > place - keep), Entry(place, number))


def lowered(row: Fastest, number: int) -> Fastest:
    """Return the row with its newest number lowered to this one, if that is less."""
    newest = row[-1]
    if number >= newest.number:
        return row
    return (*(one for one in row[:-1] if one.number < number), Entry(newest.place, number))


def least(row: Fastest, of: int) -> int:
    """Return the least of the newest `of` numbers; of as many as are kept, at most."""
    first = row[-1].place - of
    return next(one.number for one in row if one.place > first)
