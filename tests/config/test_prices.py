"""Import of prices from CSV: columns, errors with file, line and column, and limits."""

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.config import prices as module
from gpufleet.config.load import ConfigProblemsError, InvalidValueError
from gpufleet.config.prices import PriceConfig, parse_prices, read_prices
from gpufleet.model.errors import ConfigError

HEADER = "model,per_gpu_hour,valid_from,valid_to,instance_type,region,commitment,currency\n"
ROW = "NVIDIA H200,2.50,2026-01-01T00:00:00Z,,,,,EUR\n"


def write(folder: Path, content: str | bytes) -> Path:
    file = folder / "prices.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def problems(folder: Path, content: str | bytes) -> list[tuple[str, str]]:
    """Return place and column of each problem."""
    with pytest.raises(ConfigProblemsError) as caught:
        read_prices(write(folder, content), "EUR")
    assert all(one.reason for one in caught.value.problems)
    return [(one.source.removeprefix(f"{folder}/"), one.key) for one in caught.value.problems]


def test_prices_are_read_in_any_order_of_columns(tmp_path: Path) -> None:
    content = (
        "\ufeffRegion, model ,valid_from,per_gpu_hour,valid_to,instance_type,commitment\r\n"
        'eu-1,"NVIDIA H200, SXM",2026-01-01T00:00:00+01:00,2.5,2027-01-01T00:00:00Z,p5.48xlarge,reserved-1y\r\n'
        "\r\n"
        ",NVIDIA L40S,2026-01-01T00:00:00Z,0,,,\r\n"
    )
    first, second = read_prices(write(tmp_path, content), "EUR")
    assert first == PriceConfig(
        model="NVIDIA H200, SXM",
        per_gpu_hour=2.5,
        valid_from=dt.datetime(2025, 12, 31, 23, tzinfo=dt.UTC),
        valid_to=dt.datetime(2027, 1, 1, tzinfo=dt.UTC),
        instance_type="p5.48xlarge",
        region="eu-1",
        commitment="reserved-1y",
    )
    assert (second.model, second.per_gpu_hour, second.region) == ("NVIDIA L40S", 0.0, None)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("NVIDIA H200,free,2026-01-01T00:00:00Z,,,,,\n", "column 2 (per_gpu_hour)"),
        ("NVIDIA H200,nan,2026-01-01T00:00:00Z,,,,,\n", "column 2 (per_gpu_hour)"),
        ("NVIDIA H200,-1,2026-01-01T00:00:00Z,,,,,\n", "column 2 (per_gpu_hour)"),
        ("NVIDIA H200,1,2026-01-01,,,,,\n", "column 3 (valid_from)"),
        ("NVIDIA H200,1,2026-01-01T00:00:00,,,,,\n", "column 3 (valid_from)"),
        ("NVIDIA H200,1,2026-01-01T00:00:00Z,2026-01-01T00:00:00Z,,,,\n", "column 4 (valid_to)"),
        (f"NVIDIA H200,1,2026-01-01T00:00:00Z,,,{'r' * 300},,\n", "column 6 (region)"),
        ("NVIDIA H200,1,2026-01-01T00:00:00Z,,,,,USD\n", "column 8 (currency)"),
        (",1,2026-01-01T00:00:00Z,,,,,\n", "column 1 (model)"),
        (ROW.casefold().replace("eur", "").replace("z,", "Z,").replace("t0", "T0"), "column 3 (valid_from)"),
        ("NVIDIA H200,1,2026-01-01T00:00:00Z\n", ""),
        ('"NVIDIA H200\n', ""),
    ],
)
def test_problem_names_file_line_and_column(row: str, column: str, tmp_path: Path) -> None:
    assert problems(tmp_path, HEADER + ROW + "\n" + row) == [("prices.csv:4", column)]


def test_all_problems_are_reported_up_to_a_limit(tmp_path: Path) -> None:
    bad = "NVIDIA H200,x,2026-01-01T00:00:00Z,,,,,\n"
    assert problems(tmp_path, HEADER + bad + ROW + bad) == [
        ("prices.csv:2", "column 2 (per_gpu_hour)"),
        ("prices.csv:4", "column 2 (per_gpu_hour)"),
    ]
    assert len(problems(tmp_path, HEADER + 200 * bad)) == module.MAX_PROBLEMS


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("", ("prices.csv:1", "")),
        ("model,per_gpu_hour\n", ("prices.csv:1", "")),
        ("model,per_gpu_hour,valid_from,price\n", ("prices.csv:1", "column 4")),
        ("model,per_gpu_hour,valid_from,model\n", ("prices.csv:1", "column 4")),
        (HEADER.encode() + b"NVIDIA \xff\n", ("prices.csv:2", "byte 8")),
        (b"\x00" * 100, ("prices.csv:1", "")),
    ],
)
def test_wrong_file_is_refused_with_its_place(content: str | bytes, place: tuple[str, str], tmp_path: Path) -> None:
    (found,) = problems(tmp_path, content)
    assert found[0] == place[0]
    assert found[1].startswith(place[1])


def test_file_is_bounded_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(tmp_path, b"x" * (module.MAX_FILE_BYTES + 1)) == [("prices.csv", "")]
    with pytest.raises(ConfigProblemsError, match=r"none\.csv"):
        read_prices(tmp_path / "none.csv", "EUR")
    monkeypatch.setattr(module, "MAX_PRICES", 2)
    rows = "".join(f"GPU {number},1,2026-01-01T00:00:00Z,,,,,\n" for number in range(5))
    assert problems(tmp_path, HEADER + rows) == [("prices.csv:4", "")]


def test_price_must_end_after_its_start() -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    with pytest.raises(InvalidValueError, match="valid_to"):
        PriceConfig(model="a", per_gpu_hour=1, valid_from=at, valid_to=at)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: (HEADER + text).encode(errors="replace")))
def test_any_bytes_are_prices_or_problems(content: bytes) -> None:
    found: tuple[PriceConfig, ...] = ()
    wrong: tuple[ConfigError, ...] = ()
    try:
        found = parse_prices(content, "prices.csv", "EUR")
    except ConfigProblemsError as error:
        wrong = error.problems
    assert all(one.per_gpu_hour >= 0 for one in found)
    assert [one for one in wrong if not one.source.startswith("prices.csv") or len(str(one)) > 1000] == []
