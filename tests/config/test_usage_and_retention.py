"""Retention periods and prices."""

import datetime as dt

import msgspec
import pytest

from gpufleet.config.hub import RetentionConfig, UsageConfig
from gpufleet.config.load import InvalidValueError
from gpufleet.config.prices import PriceConfig

OLD = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("raw", "minute", "hour", "field"),
    [
        (30, 29, 100, "rollup_1m_days"),
        (0, 90, 100, "rollup_1m_days"),
        (30, 0, 29, "rollup_1h_days"),
        (0, 0, 100, "rollup_1h_days"),
        (30, 90, 89, "rollup_1h_days"),
        (1, 2, 3, "raw_days"),
    ],
)
def test_coarser_rollups_must_be_kept_longer(raw: int, minute: int, hour: int, field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        RetentionConfig(raw_days=raw, rollup_1m_days=minute, rollup_1h_days=hour)


@pytest.mark.parametrize("days", [(2, 2, 2), (30, 90, 0), (30, 0, 30), (0, 36_500, 0), (0, 0, 0)])
def test_equal_and_unlimited_retention_are_valid(days: tuple[int, int, int]) -> None:
    retention = RetentionConfig(raw_days=days[0], rollup_1m_days=days[1], rollup_1h_days=days[2]).as_record
    assert (retention.raw_days, retention.rollup_1m_days, retention.rollup_1h_days) == days


def test_prices_need_a_currency_and_must_not_overlap() -> None:
    price = PriceConfig(model="H200", per_gpu_hour=2.5, valid_from=OLD)
    with pytest.raises(InvalidValueError, match="currency"):
        UsageConfig(price=(price,))
    with pytest.raises(InvalidValueError) as caught:
        UsageConfig(currency="EUR", price=(price, msgspec.structs.replace(price, model="h200")))
    assert caught.value.key == "price"
    assert UsageConfig(currency="EUR", price=(price,)).price == (price,)
