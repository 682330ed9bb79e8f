"""Sources of a query over a time range: samples, minutes or hours."""

import msgspec
import pytest

from gpufleet.model.stored.retention import UNLIMITED, Resolution, Retention
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.hours import HourState, choose_sources

HOUR, MINUTE, DAY = 3600 * NANOS, 60 * NANOS, 86_400 * NANOS
KEPT = Retention(raw_days=30, rollup_1m_days=90, rollup_1h_days=1000)
NOW = 20_000 * DAY


def clean(*hours: int) -> list[HourState]:
    return [HourState(hour=hour * 3600, marked=1, seen=1, version=1) for hour in hours]


def ago(days: int) -> int:
    return NOW - days * DAY


@pytest.mark.parametrize(
    ("start", "span", "step", "resolution"),
    [
        (ago(1), 6 * HOUR, HOUR, "raw"),  # short
        (ago(1), 12 * HOUR, HOUR, "1h"),
        (ago(1), 12 * HOUR, 5 * MINUTE, "1m"),
        (ago(1), 12 * HOUR, 15 * NANOS, "raw"),  # no whole minutes
        (ago(1) + NANOS, 12 * HOUR, HOUR, "raw"),  # steps not aligned to minutes
        (ago(40), 2 * HOUR, 15 * NANOS, "1m"),  # samples are gone
        (ago(40), 2 * HOUR, HOUR, "1h"),
        (ago(100), 2 * HOUR, 15 * NANOS, "1h"),  # minutes are gone too
    ],
)
def test_range_and_step_determine_the_resolution(start: int, span: int, step: int, resolution: str) -> None:
    hours = clean(*range(start // HOUR, (start + span) // HOUR + 1))
    assert choose_sources(start, start + span, step, hours, KEPT, NOW).resolution == resolution


def test_hours_with_late_rows_are_answered_from_samples() -> None:
    first = ago(1) // HOUR
    dirty = HourState(hour=(first + 3) * 3600, marked=2, seen=1, version=1)
    pending = HourState(hour=(first + 4) * 3600, marked=1, seen=0, version=0)
    states = [*clean(first, first + 1, first + 2), dirty, pending, *clean(*range(first + 5, first + 10))]
    found = choose_sources(first * HOUR, (first + 10) * HOUR, HOUR, states, KEPT, NOW)
    assert found.rolled == ((first * HOUR, (first + 3) * HOUR), ((first + 5) * HOUR, (first + 10) * HOUR))
    assert found.raw == (((first + 3) * HOUR, (first + 5) * HOUR),)


def test_hours_past_sample_retention_ignore_late_marks() -> None:
    first = ago(40) // HOUR
    late = HourState(hour=first * 3600, marked=2, seen=1, version=1)
    pending = HourState(hour=(first + 1) * 3600, marked=1, seen=0, version=0)
    found = choose_sources(first * HOUR, (first + 2) * HOUR, HOUR, [late, pending], KEPT, NOW)
    assert found.rolled == ((first * HOUR, (first + 1) * HOUR),)
    assert found.raw == (((first + 1) * HOUR, (first + 2) * HOUR),)


def test_partial_minutes_of_a_span_are_answered_from_samples() -> None:
    start = ago(40) + 30 * NANOS
    found = choose_sources(start, start + HOUR, 45 * NANOS, clean(start // HOUR, start // HOUR + 1), KEPT, NOW)
    assert found.rolled == ((start + 30 * NANOS, start + HOUR - 30 * NANOS),)
    assert found.raw == ((start, start + 30 * NANOS), (start + HOUR - 30 * NANOS, start + HOUR))


def test_range_without_computed_hours_uses_samples() -> None:
    found = choose_sources(ago(1), NOW, HOUR, [], UNLIMITED, NOW)
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
def test_without_minutes_samples_and_hours_are_used(start: int, span: int, step: int, resolution: str) -> None:
    kept = Retention(raw_days=30, rollup_1m_days=0, rollup_1h_days=1000)
    hours = clean(*range(start // HOUR, (start + span) // HOUR + 1))
    assert choose_sources(start, start + span, step, hours, kept, NOW).resolution == resolution


def test_hours_without_minutes_use_samples_or_hours() -> None:
    first = ago(1) // HOUR
    without = [msgspec.structs.replace(one, without_minutes=True) for one in clean(*range(first, first + 4))]
    hours = [*without, *clean(*range(first + 4, first + 10))]
    found = choose_sources(first * HOUR, (first + 10) * HOUR, 5 * MINUTE, hours, KEPT, NOW)
    assert found.resolution is Resolution.MINUTE
    assert found.raw == ((first * HOUR, (first + 4) * HOUR),)
    long_ago = [msgspec.structs.replace(one, without_minutes=True) for one in clean(ago(40) // HOUR)]
    assert choose_sources(ago(40), ago(40) + HOUR, 5 * MINUTE, long_ago, KEPT, NOW).resolution is Resolution.HOUR
