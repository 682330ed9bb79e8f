"""What a question over time is answered from."""

import msgspec
import pytest

from gpufleet.model.stored.retention import FOR_EVER, Resolution, Retention
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.hours import Standing, choose

HOUR, MINUTE, DAY = 3600 * NANOS, 60 * NANOS, 86_400 * NANOS
KEPT = Retention(raw_days=30, minute_days=90, hour_days=1000)
NOW = 20_000 * DAY


def clean(*hours: int) -> list[Standing]:
    return [Standing(hour=hour * 3600, marked=1, seen=1, version=1) for hour in hours]


def ago(days: int) -> int:
    return NOW - days * DAY


@pytest.mark.parametrize(
    ("start", "span", "step", "resolution"),
    [
        (ago(1), 6 * HOUR, HOUR, "raw"),  # short
        (ago(1), 12 * HOUR, HOUR, "1h"),
        (ago(1), 12 * HOUR, 5 * MINUTE, "1m"),
        (ago(1), 12 * HOUR, 15 * NANOS, "raw"),  # of no whole minutes
        (ago(1) + NANOS, 12 * HOUR, HOUR, "raw"),  # steps that do not begin with a minute
        (ago(40), 2 * HOUR, 15 * NANOS, "1m"),  # samples are gone
        (ago(40), 2 * HOUR, HOUR, "1h"),
        (ago(100), 2 * HOUR, 15 * NANOS, "1h"),  # minutes too
    ],
)
def test_the_range_and_the_step_decide(start: int, span: int, step: int, resolution: str) -> None:
    hours = clean(*range(start // HOUR, (start + span) // HOUR + 1))
    assert choose(start, start + span, step, hours, KEPT, NOW).resolution == resolution


def test_hours_that_were_written_to_since_are_answered_from_samples() -> None:
    first = ago(1) // HOUR
    dirty = Standing(hour=(first + 3) * 3600, marked=2, seen=1, version=1)
    unmade = Standing(hour=(first + 4) * 3600, marked=1, seen=0, version=0)
    standings = [*clean(first, first + 1, first + 2), dirty, unmade, *clean(*range(first + 5, first + 10))]
    found = choose(first * HOUR, (first + 10) * HOUR, HOUR, standings, KEPT, NOW)
    assert found.rolled == ((first * HOUR, (first + 3) * HOUR), ((first + 5) * HOUR, (first + 10) * HOUR))
    assert found.raw == (((first + 3) * HOUR, (first + 5) * HOUR),)


def test_hours_of_which_samples_may_be_gone_stand_whatever_was_written_to_them_since() -> None:
    first = ago(40) // HOUR
    late = Standing(hour=first * 3600, marked=2, seen=1, version=1)
    unmade = Standing(hour=(first + 1) * 3600, marked=1, seen=0, version=0)
    found = choose(first * HOUR, (first + 2) * HOUR, HOUR, [late, unmade], KEPT, NOW)
    assert found.rolled == ((first * HOUR, (first + 1) * HOUR),)
    assert found.raw == (((first + 1) * HOUR, (first + 2) * HOUR),)


def test_the_ends_of_a_span_that_are_no_whole_minutes_are_answered_from_samples() -> None:
    start = ago(40) + 30 * NANOS
    found = choose(start, start + HOUR, 45 * NANOS, clean(start // HOUR, start // HOUR + 1), KEPT, NOW)
    assert found.rolled == ((start + 30 * NANOS, start + HOUR - 30 * NANOS),)
    assert found.raw == ((start, start + 30 * NANOS), (start + HOUR - 30 * NANOS, start + HOUR))


def test_without_any_hour_that_was_made_it_is_all_samples() -> None:
    found = choose(ago(1), NOW, HOUR, [], FOR_EVER, NOW)
    assert (found.resolution, found.rolled, found.raw) == (Resolution.RAW, (), ((ago(1), NOW),))


@pytest.mark.parametrize(
    ("start", "span", "step", "resolution"),
    [
        (ago(1), 12 * HOUR, HOUR, "1h"),
        (ago(1), 12 * HOUR, 5 * MINUTE, "raw"),
        (ago(40), 2 * HOUR, 15 * NANOS, "1h"),  # samples are gone
        (ago(40), 2 * HOUR, HOUR, "1h"),
    ],
)
def test_where_no_minutes_are_made_samples_and_hours_answer(start: int, span: int, step: int, resolution: str) -> None:
    kept = Retention(raw_days=30, minute_days=0, hour_days=1000)
    hours = clean(*range(start // HOUR, (start + span) // HOUR + 1))
    assert choose(start, start + span, step, hours, kept, NOW).resolution == resolution


def test_hours_that_were_made_without_minutes_are_answered_from_samples_or_as_hours() -> None:
    first = ago(1) // HOUR
    without = [msgspec.structs.replace(one, without_minutes=True) for one in clean(*range(first, first + 4))]
    hours = [*without, *clean(*range(first + 4, first + 10))]
    found = choose(first * HOUR, (first + 10) * HOUR, 5 * MINUTE, hours, KEPT, NOW)
    assert found.resolution is Resolution.MINUTE
    assert found.raw == ((first * HOUR, (first + 4) * HOUR),)
    long_ago = [msgspec.structs.replace(one, without_minutes=True) for one in clean(ago(40) // HOUR)]
    assert choose(ago(40), ago(40) + HOUR, 5 * MINUTE, long_ago, KEPT, NOW).resolution is Resolution.HOUR
