"""What a piece of work asks of a GPU over a day: a curve that repeats, with its exact integral and its heat.

Load is linear between knots, so that energy at any instant is known without the instants before it: whole days times
the curve's sum, and the knots' running sum of the day that has begun.
"""

import bisect
import enum
import itertools
import math

import msgspec

from gpufleet.simulate.fleet.chance import between, number

DAY = 86_400
DAY_NS = DAY * 10**9
STEP = 30
KNOTS = DAY // STEP
HEAT_SECONDS = 150.0
"""Time constant with which a board follows its power."""

_BEFORE = 100
"""Knots of the day before that heat is followed through before midnight: thirty times the time constant."""


class Shape(enum.StrEnum):
    """What kind of work it is."""

    TRAINING = "training"  # hours at full load, with dips for checkpoints
    INFERENCE = "inference"  # follows the day, never stops
    BATCH = "batch"  # minutes to an hour, then a gap


class Cycle(msgspec.Struct, frozen=True):
    """A day of work.

    Attributes:
        spans: first and last second of each job of the day, in order; between them there is no work.
        load: at each knot and at the day's end, 0 to 1.
        done: load-seconds from the day's begin to each knot.
        heat: load as the board's temperature follows it, at each knot.
    """

    spans: tuple[tuple[int, int], ...]
    load: tuple[float, ...]
    done: tuple[float, ...]
    heat: tuple[float, ...]

    def load_at(self, second: float) -> float:
        """Return the load at a second of the day."""
        return _at(self.load, second)

    def heat_at(self, second: float) -> float:
        """Return what the temperature follows at a second of the day."""
        return _at(self.heat, second)

    def done_by(self, second: float) -> float:
        """Return the load-seconds since the day began."""
        knot = int(second / STEP)
        part = second / STEP - knot
        low, high = self.load[knot], self.load[min(knot + 1, KNOTS)]
        return self.done[knot] + STEP * part * (low + (high - low) * part / 2)

    def span_at(self, second: float) -> int:
        """Return the number of the day's job that runs at a second of the day, or -1 where none does."""
        found = bisect.bisect_right(self.spans, (int(second), DAY + 1)) - 1
        return found if found >= 0 and second < self.spans[found][1] else -1


def _at(curve: tuple[float, ...], second: float) -> float:
    knot = int(second / STEP)
    low, high = curve[knot], curve[min(knot + 1, KNOTS)]
    return low + (high - low) * (second / STEP - knot)


def cycle_of(shape: Shape, seed: int, variant: int) -> Cycle:
    """Make the curve of a kind of work; `variant` tells curves of one kind apart."""
    words = (seed, shape.value, variant)
    spans = tuple(_spans(shape, words))
    load = [0.0] * (KNOTS + 1)
    for job, (begin, end) in enumerate(spans):
        for knot in range(begin // STEP, end // STEP + 1):
            second = knot * STEP
            if shape is Shape.INFERENCE or begin < second < end:
                load[knot] = _load(shape, (*words, job), second - begin, end - begin)
    load[KNOTS] = load[0]
    done = [0.0]
    for low, high in itertools.pairwise(load):
        done.append(done[-1] + STEP * (low + high) / 2)
    return Cycle(spans, tuple(load), tuple(done), tuple(_heat(load)))


def _spans(shape: Shape, words: tuple[int | str, ...]) -> list[tuple[int, int]]:
    """Return the jobs of a day, at whole steps."""
    if shape is Shape.INFERENCE:
        return [(0, DAY)]
    shortest, longest, least_gap, most_gap = (
        (5 * 3600, 9 * 3600, 300, 2400) if shape is Shape.TRAINING else (1200, 5400, 300, 1800)
    )
    spans: list[tuple[int, int]] = []
    at = number(most_gap, *words, "first") // STEP * STEP
    while True:
        end = at + int(between(shortest, longest, *words, len(spans), "length")) // STEP * STEP
        if end > DAY - least_gap:
            return spans
        spans.append((at, end))
        at = end + int(between(least_gap, most_gap, *words, len(spans), "gap")) // STEP * STEP


def _load(shape: Shape, words: tuple[int | str, ...], since: int, whole: int) -> float:
    """Return the load at a knot of a job, `since` seconds after its begin."""
    jitter = between(-1.0, 1.0, *words, since)
    if shape is Shape.INFERENCE:
        day = 0.45 - 0.3 * math.cos(2 * math.pi * since / DAY)
        return min(1.0, max(0.05, day + 0.12 * math.sin(2 * math.pi * since / 3600) + 0.1 * jitter))
    level = between(0.88, 0.96, *words) if shape is Shape.TRAINING else between(0.35, 0.95, *words)
    if shape is Shape.TRAINING:
        every = 1200 + 60 * number(20, *words, "checkpoints")
        if since % every < 2 * STEP and since > STEP and whole - since > every:
            return 0.15
    return min(1.0, max(0.02, level * min(1.0, since / 300) + 0.04 * jitter))


def _heat(load: list[float]) -> list[float]:
    """Return the load behind a low pass, in the state that yesterday, which was the same, has left."""
    follow = 1 - math.exp(-STEP / HEAT_SECONDS)
    heat = 0.0
    for value in load[-_BEFORE - 1 : -1]:
        heat += (value - heat) * follow
    curve = [heat]
    for value in load[:-1]:
        heat += (value - heat) * follow
        curve.append(heat)
    return curve
