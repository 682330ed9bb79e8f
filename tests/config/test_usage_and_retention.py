"""Days that rows are kept for, and prices."""

import datetime as dt

import msgspec
import pytest

from gpufleet.config.hub import PriceConfig, RetentionConfig, UsageConfig
from gpufleet.config.load import ImpossibleValueError

OLD = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("raw", "minute", "hour", "field"),
    [
        (30, 29, 100, "minute_days"),
        (0, 90, 100, "minute_days"),
        (30, 0, 29, "hour_days"),
        (0, 0, 100, "hour_days"),
        (30, 90, 89, "hour_days"),
        (1, 2, 3, "raw_days"),
    ],
)
def test_what_is_coarser_stays_longer(raw: int, minute: int, hour: int, field: str) -> None:
    with pytest.raises(ImpossibleValueError, match=field):
        RetentionConfig(raw_days=raw, minute_days=minute, hour_days=hour)


@pytest.mark.parametrize("days", [(2, 2, 2), (30, 90, 0), (30, 0, 30), (0, 36_500, 0), (0, 0, 0)])
def test_the_same_time_and_for_ever_are_fine(days: tuple[int, int, int]) -> None:
    kept = RetentionConfig(raw_days=days[0], minute_days=days[1], hour_days=days[2]).kept
    assert (kept.raw_days, kept.minute_days, kept.hour_days) == days


def test_prices_have_a_currency_and_one_price_an_instant() -> None:
    price = PriceConfig(model="H200", per_gpu_hour=2.5, valid_from=OLD)
    with pytest.raises(ImpossibleValueError, match="currency"):
        UsageConfig(price=(price,))
    with pytest.raises(ImpossibleValueError, match="same instant"):
        UsageConfig(currency="EUR", price=(price, msgspec.structs.replace(price, model="h200")))
    assert UsageConfig(currency="EUR", price=(price,)).price == (price,)
