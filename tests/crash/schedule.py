"""What happens when: from a seed, the same every time. Pure."""

import fnmatch
import random
from collections.abc import Iterator, Sequence

import msgspec

COMPANION_CHANCE = 0.3
"""Of a kill in the middle of another fault."""

VICTIMS = ("hub", "relay", "agent-a", "agent-b")


class Step(msgspec.Struct, frozen=True):
    """One fault to come.

    Attributes:
        number: 1, 2, 3, ...
        fault: its name.
        gap: seconds of quiet before it.
        share: from 0 to 1, where it stands between its shortest and its longest.
        companion: who is killed in its middle, if it lasts, or None.
        chance: what the fault takes its own choices from.
    """

    number: int
    fault: str
    gap: float
    share: float
    companion: str | None
    chance: random.Random


def choose(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that fit any of the patterns, all of them without patterns.

    Raises:
        ValueError: if a pattern fits none.
    """
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no fault is called {pattern!r}; there are: {'; '.join(names)}")
    return [name for name in names if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def schedule(names: Sequence[str], seed: int) -> Iterator[Step]:
    """Give steps without end: each fault once in some order, then each once in another, and so on."""
    order = random.Random(seed)
    number = 0
    while True:
        for name in order.sample(names, len(names)):
            number += 1
            chance = random.Random(f"{seed} {number} {name}")
            companion = chance.choice(VICTIMS) if chance.random() < COMPANION_CHANCE else None
            yield Step(number, name, chance.uniform(0.2, 3.0), chance.random(), companion, chance)
