"""Daily load curves of workloads, with their exact integral and the resulting heat.

Load is linear between knots. Energy at any instant is therefore known without the previous instants: the curve's sum
for each whole day, plus the running sum of the present day.
"""

import bisect
import enum
import functools
import itertools
import math

import msgspec

from gpufleet.simulate.fleet.random_values import between, number

DAY = 86_400
DAY_NS = DAY * 10**9
STEP = 30
KNOTS = DAY // STEP
HEAT_SECONDS = 150.0
"""Time constant with which the temperature of a board follows its power."""

_WARMUP_KNOTS = 100
"""Knots of the previous day from which heat is computed: thirty time constants."""


class LoadShape(enum.StrEnum):
    """Shape of a load curve."""

    TRAINING = "training"  # hours at full load, with dips for checkpoints
    INFERENCE = "inference"  # follows the time of day, never stops
    BATCH = "batch"  # minutes to an hour, then a gap


class LoadCycle(msgspec.Struct, frozen=True):
    """Load curve of a day.

    Attributes:
        spans: first and last second of each job of the day, in order; there is no load between them.
        load: at each knot and at the end of the day, 0 to 1.
        done: load-seconds from the start of the day to each knot.
        heat: load after a low pass with the board's time constant, at each knot.
    """

    spans: tuple[tuple[int, int], ...]
    load: tuple[float, ...]
    done: tuple[float, ...]
    heat: tuple[float, ...]

    def load_at(self, second: float) -> float:
        """Return the load at a second of the day."""
        return _at(self.load, second)

    def heat_at(self, second: float) -> float:
        """Return the low-passed load at a second of the day."""
        return _at(self.heat, second)

    def done_by(self, second: float) -> float:
        """Return the load-seconds since the start of the day."""
        knot = int(second / STEP)
        part = second / STEP - knot
        low, high = self.load[knot], self.load[min(knot + 1, KNOTS)]
        return self.done[knot] + STEP * part * (low + (high - low) * part / 2)

    def span_at(self, second: float) -> int:
        """Return the index of the job that runs at a second of the day, or -1 if none does."""
        found = bisect.bisect_right(self.spans, (int(second), DAY + 1)) - 1
        return found if found >= 0 and second < self.spans[found][1] else -1


def _at(curve: tuple[float, ...], second: float) -> float:
    knot = int(second / STEP)
    low, high = curve[knot], curve[min(knot + 1, KNOTS)]
    return low + (high - low) * (second / STEP - knot)


@functools.lru_cache(maxsize=64)
def make_cycle(shape: LoadShape, seed: int, variant: int) -> LoadCycle:
    """Return the load curve for a shape; `variant` distinguishes curves of the same shape."""
    key = (seed, shape.value, variant)
    spans = tuple(_spans(shape, key))
    load = [0.0] * (KNOTS + 1)
    for job, (begin, end) in enumerate(spans):
        for knot in range(begin // STEP, end // STEP + 1):
            second = knot * STEP
            if shape is LoadShape.INFERENCE or begin < second < end:
                load[knot] = _load(shape, (*key, job), second - begin, end - begin)
    load[KNOTS] = load[0]
    done = [0.0]
    for low, high in itertools.pairwise(load):
        done.append(done[-1] + STEP * (low + high) / 2)
    return LoadCycle(spans, tuple(load), tuple(done), tuple(_heat(load)))


def _spans(shape: LoadShape, key: tuple[int | str, ...]) -> list[tuple[int, int]]:
    """Return the jobs of a day, at whole steps."""
    if shape is LoadShape.INFERENCE:
        return [(0, DAY)]
    shortest, longest, least_gap, most_gap = (
        (5 * 3600, 9 * 3600, 300, 2400) if shape is LoadShape.TRAINING else (1200, 5400, 300, 1800)
    )
    spans: list[tuple[int, int]] = []
    at = number(most_gap, *key, "first") // STEP * STEP
    while True:
        end = at + int(between(shortest, longest, *key, len(spans), "length")) // STEP * STEP
        if end > DAY - least_gap:
            return spans
        spans.append((at, end))
        at = end + int(between(least_gap, most_gap, *key, len(spans), "gap")) // STEP * STEP


def _load(shape: LoadShape, key: tuple[int | str, ...], since: int, whole: int) -> float:
    """Return the load at a knot of a job, `since` seconds after its start."""
    jitter = between(-1.0, 1.0, *key, since)
    if shape is LoadShape.INFERENCE:
        day = 0.45 - 0.3 * math.cos(2 * math.pi * since / DAY)
        return min(1.0, max(0.05, day + 0.12 * math.sin(2 * math.pi * since / 3600) + 0.1 * jitter))
    level = between(0.88, 0.96, *key) if shape is LoadShape.TRAINING else between(0.35, 0.95, *key)
    if shape is LoadShape.TRAINING:
        every = 1200 + 60 * number(20, *key, "checkpoints")
        if since % every < 2 * STEP and since > STEP and whole - since > every:
            return 0.15
    return min(1.0, max(0.02, level * min(1.0, since / 300) + 0.04 * jitter))


def _heat(load: list[float]) -> list[float]:
    """Return the low-passed load, starting from the state at the end of an identical previous day."""
    follow = 1 - math.exp(-STEP / HEAT_SECONDS)
    heat = 0.0
    for value in load[-_WARMUP_KNOTS - 1 : -1]:
        heat += (value - heat) * follow
    curve = [heat]
    for value in load[:-1]:
        heat += (value - heat) * follow
        curve.append(heat)
    return curve
