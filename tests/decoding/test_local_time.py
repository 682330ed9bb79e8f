"""Time zones of local times in captured outputs."""

import datetime as dt

import pytest

from gpufleet.decoding.local_time import MAX_DELAY, parse_zone, zone_of_capture

UTC_NOON = dt.datetime(2026, 6, 24, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("UTC", 0), ("Z", 0), ("+02:00", 2), ("-0330", -3.5), ("Europe/Berlin", 2), ("Asia/Kolkata", 5.5)],
)
def test_zone_by_name_or_offset(text: str, hours: float) -> None:
    assert parse_zone(text).utcoffset(dt.datetime(2026, 6, 24)) == dt.timedelta(hours=hours)  # noqa: DTZ001


@pytest.mark.parametrize("text", ["", " ", "Nowhere", "+15:00", "+02:60", "../UTC", "2", "\0"])
def test_unknown_zone_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="zone"):
        parse_zone(text)


@pytest.mark.parametrize("hours", [-12, -3.5, 0, 2, 5.75, 14])
@pytest.mark.parametrize("delay", [dt.timedelta(seconds=-1), dt.timedelta(0), MAX_DELAY])
def test_zone_follows_from_the_head_of_the_file(hours: float, delay: dt.timedelta) -> None:
    local = (UTC_NOON + dt.timedelta(hours=hours) + delay).replace(tzinfo=None)
    zone = zone_of_capture(UTC_NOON, local)
    assert zone is not None
    assert zone.is_known
    assert zone.to_ns(local) == int((UTC_NOON + delay).timestamp()) * 10**9


@pytest.mark.parametrize("minutes", [7, 24 * 60, -15 * 60, 60 * 24 * 365 * 1000])
def test_time_of_another_moment_shows_no_zone(minutes: int) -> None:
    local = (UTC_NOON + dt.timedelta(minutes=minutes)).replace(tzinfo=None)
    assert zone_of_capture(UTC_NOON, local) is None
    assert zone_of_capture(None, local) is None
    assert zone_of_capture(UTC_NOON, None) is None
