"""Schedule of faults, reproducible from a seed."""

import fnmatch
import random
from collections.abc import Iterator, Sequence

import msgspec

COMPANION_CHANCE = 0.3
"""Probability of a kill during another fault."""

VICTIMS = ("hub", "relay", "agent-a", "agent-b")


class Step(msgspec.Struct, frozen=True):
    """One scheduled fault.

    Attributes:
        number: 1, 2, 3, ...
        fault: name of the fault.
        gap: seconds of quiet before it.
        share: position of its duration between minimum and maximum, from 0 to 1.
        companion: daemon that is killed during the fault, or None.
        chance: random generator for the fault.
    """

    number: int
    fault: str
    gap: float
    share: float
    companion: str | None
    chance: random.Random


def choose(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match any of the patterns, or all names if there are no patterns.

    Raises:
        ValueError: if a pattern matches no name.
    """
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no fault is called {pattern!r}; there are: {'; '.join(names)}")
    return [name for name in names if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def schedule(names: Sequence[str], seed: int) -> Iterator[Step]:
    """Yield steps endlessly. Every round contains each fault once, in a new order."""
    order = random.Random(seed)
    number = 0
    while True:
        for name in order.sample(names, len(names)):
            number += 1
            chance = random.Random(f"{seed} {number} {name}")
            companion = chance.choice(VICTIMS) if chance.random() < COMPANION_CHANCE else None
            yield Step(number, name, chance.uniform(0.2, 3.0), chance.random(), companion, chance)
