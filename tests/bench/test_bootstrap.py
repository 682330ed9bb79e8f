"""Confidence intervals of differences of medians."""

import random

import pytest

from gpufleet.bench.bootstrap import MIN_REPEATS, median_interval, student_distribution, student_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (500, 1.965)]
)
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_quantile(0.975, degrees) == pytest.approx(quantile, abs=1e-3)
    assert student_distribution(0.0, degrees) == pytest.approx(0.5)


def test_clear_difference_is_significant() -> None:
    interval = median_interval((100.0, 101.0, 99.0, 100.5, 99.5), (50.0, 51.0, 49.0, 50.5, 49.5), comparisons=12)
    assert interval.difference == -50.0
    assert interval.low < -50 < interval.high < 0
    assert interval.is_significant


def test_interval_is_the_same_in_each_run() -> None:
    source = random.Random(1)
    first, second = ([source.gauss(10, 1) for _ in range(8)] for _ in range(2))
    assert median_interval(first, second) == median_interval(first, second)


def test_equal_constant_samples_do_not_differ() -> None:
    interval = median_interval((7.0,) * 5, (7.0,) * 6)
    assert (interval.difference, interval.low, interval.high, interval.is_significant) == (0, 0, 0, False)


def test_more_comparisons_widen_the_interval() -> None:
    first, second = (1.0, 2.0, 3.0, 4.0, 5.0), (2.0, 3.0, 4.0, 5.0, 6.0)
    alone, among = median_interval(first, second), median_interval(first, second, comparisons=20)
    assert among.low < alone.low < alone.high < among.high


def test_too_few_values_are_refused() -> None:
    with pytest.raises(ValueError, match=str(MIN_REPEATS)):
        median_interval((1.0,) * (MIN_REPEATS - 1), (1.0,) * 9)
