"""Prices: the price of a unit at an instant by model, instance type, region and commitment."""

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.usage.prices import PriceTable
from gpufleet.fleet.usage.units import PhysicalUnit, UnitPlacement
from gpufleet.model.api.usage import Price
from gpufleet.model.time import to_ns

T0 = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
H200 = PhysicalUnit("c", "u0", (), "NVIDIA H200", {}, (UnitPlacement(0, "p5.48xlarge", "eu-1"),))


def day(number: int) -> dt.datetime:
    return T0 + dt.timedelta(days=number)


def price(amount: float, since: int = 0, until: int | None = None, **fields: Any) -> Price:
    end = None if until is None else day(until)
    return Price(
        **{"model": "nvidia h200", "per_gpu_hour": amount, "valid_from": day(since), "valid_to": end, **fields}
    )


def found(table: PriceTable, at: int, unit: PhysicalUnit = H200) -> float | None:
    return table.find(unit, to_ns(day(at)))


def test_price_holds_until_its_end_or_the_next_one() -> None:
    table = PriceTable([price(3, 10), price(1, 0), price(2, 5, 8)])
    assert [found(table, at) for at in (-1, 0, 4, 5, 7, 8, 9, 10, 99)] == [None, 1, 1, 2, 2, None, None, 3, 3]
    assert table.boundaries == [to_ns(day(at)) for at in (0, 5, 8, 10)]


def test_most_specific_price_counts() -> None:
    table = PriceTable(
        [
            price(1, 2),
            price(2, 0, region="eu-1"),
            price(3, 0, instance_type="p5.48xlarge"),
            price(4, 0, 6, commitment="reserved-1y"),
        ],
        "EUR",
        {"c": "reserved-1y"},
    )
    assert [found(table, at) for at in (0, 5, 6)] == [4, 4, 3]
    other = PhysicalUnit("d", "u1", (), "NVIDIA H200", {}, (UnitPlacement(0, "p5e", "eu-1"),))
    assert found(table, 3, other) == 2
    assert found(table, 3, PhysicalUnit("d", "u2", (), "NVIDIA H200", {})) == 1
    assert table.needs_placement
    assert not PriceTable([price(1)]).needs_placement


def test_price_is_that_of_the_placement_at_the_time() -> None:
    table = PriceTable([price(1), price(2, instance_type="p5")])
    moved = (UnitPlacement(to_ns(day(2)), "p5", None), UnitPlacement(to_ns(day(4)), "p4", None))
    unit = PhysicalUnit("c", "u", (), "NVIDIA H200", {}, moved)
    assert [found(table, at, unit) for at in range(1, 6)] == [1, 2, 2, 1, 1]


def test_unknown_place_or_model_has_no_specific_price() -> None:
    table = PriceTable([price(1, region="eu-1"), price(2, instance_type="p5.48xlarge"), price(3, commitment="spot")])
    assert found(table, 1, PhysicalUnit("c", "u", (), "NVIDIA H200", {})) is None
    assert found(table, 1, PhysicalUnit("c", "u", (), None, {}, (UnitPlacement(0, None, "eu-1"),))) is None


def test_table_without_prices_has_no_currency() -> None:
    assert (bool(PriceTable((), "EUR")), PriceTable((), "EUR").currency) == (False, None)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9) | st.none(), st.sampled_from([None, "eu-1", "us-1"])),
                unique_by=lambda one: (one[0], one[2])))  # fmt: skip
def test_price_changes_only_at_boundaries(parts: list[tuple[int, int | None, str | None]]) -> None:
    prices = [
        price(float(number + 1), since, None if length is None else since + length, region=region)
        for number, (since, length, region) in enumerate(parts)
    ]
    table = PriceTable(prices)
    edges = {to_ns(day(-1)), *table.boundaries, to_ns(day(30))}
    for at in range(20):
        start = max(edge for edge in edges if edge <= to_ns(day(at)))
        assert found(table, at) == table.find(H200, start)


@pytest.mark.parametrize("at", [0, 3])
def test_case_of_the_model_is_ignored(at: int) -> None:
    assert found(PriceTable([price(1, model="NVIDIA h200")]), at) == 1
