"""Prices that are in force: a changed file is read again, and an invalid one changes nothing."""

import datetime as dt
import logging
import os
from pathlib import Path

import pytest

from gpufleet.config.hub import UsageConfig
from gpufleet.config.load import ConfigProblemsError
from gpufleet.config.prices import PriceConfig
from gpufleet.fleet.usage.prices import PriceTable
from gpufleet.fleet.usage.units import PhysicalUnit
from gpufleet.hub.query.prices import CurrentPrices

HEADER = "model,per_gpu_hour,valid_from\n"
UNIT = PhysicalUnit(cluster="rack-7", id="a", views=(), model="NVIDIA H200", parts={})
AT = 1_800_000_000 * 10**9


def write(file: Path, *rows: str) -> None:
    """Rename a new file over a file of prices."""
    new = file.with_suffix(".new")
    new.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    new.rename(file)


def price(table: PriceTable) -> float | None:
    return table.find(UNIT, AT)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "prices.csv", "NVIDIA H200,2.5,2026-01-01T00:00:00Z")
    return tmp_path / "prices.csv"


@pytest.fixture
def prices(file: Path) -> CurrentPrices:
    return CurrentPrices(UsageConfig(currency="EUR", price_file=str(file)))


def test_changed_file_is_read_again(prices: CurrentPrices, file: Path) -> None:
    first = prices.table()
    assert (price(first), prices.table() is first) == (2.5, True)
    write(file, "NVIDIA H200,3.5,2026-01-01T00:00:00Z")
    assert (price(prices.table()), prices.table().currency) == (3.5, "EUR")


def test_file_that_is_written_in_place_is_read_again(prices: CurrentPrices, file: Path) -> None:
    prices.table()
    inode = file.stat().st_ino
    file.write_text(f"{HEADER}NVIDIA H200,9,2026-01-01T00:00:00Z\n")
    os.utime(file, ns=(1, 1))
    assert (file.stat().st_ino, price(prices.table())) == (inode, 9.0)


@pytest.mark.parametrize("rows", [("NVIDIA H200,two,2026-01-01T00:00:00Z",), ("NVIDIA H200,2",)])
def test_invalid_file_changes_nothing(
    prices: CurrentPrices, file: Path, rows: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    write(file, *rows)
    with caplog.at_level(logging.INFO):
        assert [price(prices.table()) for _ in range(3)] == [2.5] * 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"{file}:2" in caplog.text
    write(file, "NVIDIA H200,4,2026-01-01T00:00:00Z")
    assert price(prices.table()) == 4.0


def test_removed_file_changes_nothing(prices: CurrentPrices, file: Path) -> None:
    file.unlink()
    assert price(prices.table()) == 2.5


def test_price_of_the_configuration_stays_in_force(file: Path) -> None:
    write(file)
    own = PriceConfig(model="NVIDIA H200", per_gpu_hour=1.0, valid_from=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    prices = CurrentPrices(UsageConfig(currency="EUR", price_file=str(file), price=(own,)))
    assert price(prices.table()) == 1.0
    write(file, "NVIDIA H200,7,2026-06-01T00:00:00Z")
    assert price(prices.table()) == 7.0
    write(file, "NVIDIA H200,8,2026-01-01T00:00:00Z")  # two prices of the same GPUs from the same instant
    assert price(prices.table()) == 7.0


def test_hub_does_not_start_with_an_invalid_file(file: Path) -> None:
    write(file, "NVIDIA H200")
    with pytest.raises(ConfigProblemsError):
        CurrentPrices(UsageConfig(currency="EUR", price_file=str(file)))


def test_without_a_file_the_table_is_constant() -> None:
    prices = CurrentPrices(UsageConfig())
    assert prices.table() is prices.table()
    assert not prices.table()
