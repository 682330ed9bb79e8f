"""Rows of texts for reports in any order."""

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.schema.sets import WriteCache

Report = tuple[int, int]
"""Second and id of the texts."""

SUBJECT = ("east", "m", "vgpu/1", "nvml")


def newest_first(reports: Sequence[Report], _: random.Random) -> list[Report]:
    """Return an outage's reports as an agent posts them: the 32 newest backwards, and the others beside them."""
    pairs = itertools.zip_longest(reports[:-33:-1], reports[:-32])
    return [one for pair in pairs for one in pair if one is not None]


def from_both_ends(reports: Sequence[Report], choice: random.Random) -> list[Report]:
    """Return an outage's reports as a relay posts them."""
    left = list(reports)
    return [left.pop(choice.choice((0, -1))) for _ in reports]


def shuffled(reports: Sequence[Report], choice: random.Random) -> list[Report]:
    return choice.sample(reports, len(reports))


def turns(choice: random.Random, step: int, shortest: int) -> list[Report]:
    """Return reports of two texts in turn, with pauses."""
    found: list[Report] = []
    second = 1_790_000_000
    for _ in range(40):
        texts, end = choice.choice((1, 2, 0)), second + choice.randint(shortest, 10 * shortest)
        while second < end:
            if texts:
                found.append((second, texts))
            second += step
    return found


def arrivals(reports: Sequence[Report], delay: Callable[..., list[Report]], choice: random.Random) -> list[Report]:
    """Return the reports in the order of their arrival: live, with outages."""
    found: list[Report] = []
    at = 0
    while at < len(reports):
        is_outage = choice.random() < 0.01
        length = choice.randint(20, 400) if is_outage else 10
        some = reports[at : at + length]
        found += delay(some, choice) if is_outage else some
        at += length
        found += reports[at : at + 10]
        at += 10
    return found


def written(order: Sequence[Report], lane: str, *, restarts: bool = False) -> list[Report]:
    cache, rows = WriteCache(), []
    for number, (second, texts) in enumerate(order):
        if restarts and number and number % 97 == 0:
            cache, newest = WriteCache(), max(order[:number])
            cache.add_info((*SUBJECT, lane), newest[1], newest[0] * NANOS)
        if cache.new_info((*SUBJECT, lane), texts, second * NANOS) is not None:
            rows.append((second, texts))
    return sorted(rows)


def texts_of(reports: Sequence[Report], rows: Sequence[Report]) -> list[Report]:
    """Return the reports with the texts that their newest rows have."""
    found: list[Report] = []
    texts = 0
    places = iter([*rows, (1 << 62, 0)])
    following = next(places)
    for second, _ in reports:
        while following[0] <= second:
            texts, following = following[1], next(places)
        found.append((second, texts))
    return found


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("delay", [newest_first, from_both_ends, shuffled])
def test_newest_row_has_the_texts_of_each_report(delay: Callable[..., list[Report]], restarts: bool) -> None:
    for seed in range(30):
        choice = random.Random(seed)
        reports = turns(choice, 10, 60)
        rows = written(arrivals(reports, delay, choice), "fast", restarts=restarts)
        assert (seed, texts_of(reports, rows)) == (seed, reports)


@pytest.mark.parametrize(("lane", "step"), [("fast", 10), ("fast", 60), ("slow", 60), ("static", 600), ("static", 30)])
def test_reports_of_a_run_have_one_row(lane: str, step: int) -> None:
    reports = [(1_790_000_000 + number * step, 1) for number in range(1000)]
    assert len(written(reports, lane)) <= 5
    pause = 40 * 60
    assert len(written([*reports, *[(second + 1000 * step + pause, 1) for second, _ in reports]], lane)) <= 6


@pytest.mark.parametrize("delay", [newest_first, from_both_ends, shuffled])
@pytest.mark.parametrize("live", [1, 2, 3])
@pytest.mark.parametrize("outages", [3, 5, 12])
def test_turn_in_one_of_several_outages_has_its_texts(
    delay: Callable[..., list[Report]], live: int, outages: int
) -> None:
    begin = 1000 + (90 + live) * (outages - 1) + 6
    reports = [(1_790_000_000 + number * 10, 2 if begin <= number < begin + 24 else 1) for number in range(3000)]
    late: list[Report] = []
    order, start = reports[:1000], 1000
    for _ in range(outages):
        late += reports[start : start + 90]
        order += reports[start + 90 : start + 90 + live]
        start += 90 + live
    order += [*delay(late, random.Random(0)), *reports[start:]]
    assert texts_of(reports, written(order, "fast")) == reports


def test_late_reports_of_a_run_have_few_rows() -> None:
    reports = [(1_790_000_000 + number * 10, 1) for number in range(5000)]
    order = [*reports[:100], *newest_first(reports[100:4900], random.Random(0)), *reports[4900:]]
    assert len(written(order, "fast")) < 100
