"""Times and durations on the command line."""

import datetime as dt

import pytest

from gpufleet.cli.options import OptionError
from gpufleet.cli.times import parse_span, parse_time, time_parameter

NOW = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", dt.datetime(2026, 1, 31, 11, 50, tzinfo=dt.UTC)),
        ("2d", dt.datetime(2026, 1, 29, 12, tzinfo=dt.UTC)),
        ("0s", NOW),
        ("2026-01-31T12:00:00Z", NOW),
        ("2026-01-31T13:00:00+01:00", NOW),
    ],
)
def test_time_is_rfc_3339_or_a_duration_before_now(text: str, expected: dt.datetime) -> None:
    assert parse_time("--since", text, NOW) == expected


@pytest.mark.parametrize("text", ["", "10", "10x", "m", "-5m", "1.5h", "yesterday", "2026-01-31T12:00:00", "999999d"])
def test_wrong_time_is_rejected(text: str) -> None:
    with pytest.raises(OptionError):
        parse_time("--since", text, NOW)


def test_time_parameter_is_utc() -> None:
    assert time_parameter("--since", "2026-01-31T13:00:00+01:00") == "2026-01-31T12:00:00Z"
    assert time_parameter("--since", None) is None


def test_duration_has_a_unit() -> None:
    assert parse_span("--watch", "90s") == dt.timedelta(seconds=90)
    with pytest.raises(OptionError):
        parse_span("--watch", "90")
