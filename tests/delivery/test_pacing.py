"""Retry delays and `Retry-After`."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.delivery.pacing import MAX_RETRY_AFTER_SECONDS, MAX_SECONDS, parse_retry_after, retry_delay

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def test_delays_double_up_to_a_quarter_of_a_minute() -> None:
    assert [retry_delay(failures, None, 1.0) for failures in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 8, 15, 15]
    assert retry_delay(3, None, 0.0) == 2


@given(st.integers(1, 10**9), st.none() | st.floats(0, 1e12), st.floats(0, 1))
def test_delay_is_bounded_and_respects_retry_after(failures: int, retry_after: float | None, jitter: float) -> None:
    delay = retry_delay(failures, retry_after, jitter)
    assert 0.5 <= delay <= max(MAX_SECONDS, MAX_RETRY_AFTER_SECONDS)
    assert delay >= min(retry_after or 0, MAX_RETRY_AFTER_SECONDS)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("9" * 400, MAX_RETRY_AFTER_SECONDS),
        ("Thu, 01 Jan 2026 00:01:30 GMT", 90),
        ("Thu, 01 Jan 2020 00:00:00 GMT", 0),
        ("", None),
        ("-3", None),
        ("soon", None),
        ("٣", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, seconds: float | None) -> None:
    assert parse_retry_after(header, NOW) == seconds


@given(st.text(max_size=60))
def test_any_header_is_parsed_without_an_error(header: str) -> None:
    parsed = parse_retry_after(header, NOW)
    assert parsed is None or parsed >= 0
