"""Prices of GPU-hours: records of the configuration, and their import from CSV."""

import csv
import datetime as dt
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Self

import msgspec

from gpufleet.config.load import ConfigProblemsError, InvalidValueError
from gpufleet.model.errors import ConfigError

MAX_FILE_BYTES = 4 << 20
"""Maximum size of a CSV file."""

MAX_PRICES = 10_000
"""Maximum number of prices of a CSV file."""

MAX_PROBLEMS = 50
"""Maximum number of problems that are reported."""

REQUIRED = ("model", "per_gpu_hour", "valid_from")
OPTIONAL = ("valid_to", "instance_type", "region", "commitment", "currency")
"""Columns of a CSV file, in any order."""

PriceText = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of an hour of a GPU, valid from an instant until its end, or until the next price of the same GPUs.

    Attributes:
        model: model name as the driver writes it, in any case, such as `NVIDIA H200`.
        per_gpu_hour: price in the `currency` of `[usage]`.
        valid_from: RFC 3339 with a time zone, such as `2026-01-01T00:00:00Z`.
        valid_to: end, likewise; None means until the next price.
        instance_type: only GPUs of machines of this type, such as `p5.48xlarge`; None means any.
        region: only GPUs of machines in this region, such as `eu-west-1`; None means any.
        commitment: only GPUs of clusters with this commitment, such as `reserved-1y`; None means any.
    """

    model: PriceText
    per_gpu_hour: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    valid_from: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    valid_to: Annotated[dt.datetime, msgspec.Meta(tz=True)] | None = None
    instance_type: PriceText | None = None
    region: PriceText | None = None
    commitment: PriceText | None = None

    def __post_init__(self) -> None:
        """Refuse an end before the start."""
        if self.valid_to is not None and self.valid_to <= self.valid_from:
            raise InvalidValueError("valid_to", "is not after valid_from")

    @property
    def key(self) -> tuple[str | dt.datetime | None, ...]:
        """Return what no two prices have in common: GPUs and start."""
        return self.model.casefold(), self.instance_type, self.region, self.commitment, self.valid_from


class _CsvHeader(msgspec.Struct, frozen=True):
    """Names of the columns of a CSV file, in order."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, file: str, cells: Iterable[str]) -> Self:
        """Return the header.

        Raises:
            ConfigError: if a column is unknown, repeated or missing.
        """
        names = tuple([cell.strip().casefold() for cell in cells])
        known = (*REQUIRED, *OPTIONAL)
        for place, name in enumerate(names, 1):
            if name not in known:
                reason = f"{name!r:.60} is not a column: use {', '.join(known)}"
                raise ConfigError(f"{file}:1", f"column {place}", reason)
            if name in names[: place - 1]:
                raise ConfigError(f"{file}:1", f"column {place}", f"{name!r} is repeated")
        missing = [name for name in REQUIRED if name not in names]
        if missing:
            raise ConfigError(f"{file}:1", "", f"has no column {', '.join(missing)}")
        return cls(names)

    def place(self, name: str) -> str:
        """Return the column of a name for messages."""
        return f"column {self.names.index(name) + 1} ({name})" if name in self.names else f"column {name}"


def read_prices(file: Path, currency: str) -> tuple[PriceConfig, ...]:
    """Return the prices of a CSV file with a header, in its order.

    Args:
        file: UTF-8, separated by commas.
        currency: currency of all prices; each cell of the column `currency` must have it or be empty.

    Raises:
        ConfigProblemsError: with file, line and column of each problem.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigProblemsError((ConfigError(str(file), "", f"cannot be read: {error.strerror}"),)) from error
    return parse_prices(content, str(file), currency)


def parse_prices(content: bytes, file: str, currency: str) -> tuple[PriceConfig, ...]:
    """Return the prices of the content of a CSV file, as `read_prices`; `file` is its name in messages."""
    try:
        rows = _rows(file, _text(file, content))
        header = _CsvHeader.of(file, next(rows, (1, []))[1])
    except ConfigError as error:
        raise ConfigProblemsError((error,)) from error
    found: list[PriceConfig] = []
    problems: list[ConfigError] = []
    lines: dict[tuple[str | dt.datetime | None, ...], int] = {}
    for line, cells in rows:
        try:
            price = _price(file, header, line, cells, currency)
        except ConfigError as error:
            problems.append(error)
        else:
            first = lines.setdefault(price.key, line)
            if first != line:
                reason = f"the price of the same GPUs from the same instant is in line {first}"
                problems.append(ConfigError(f"{file}:{line}", header.place("valid_from"), reason))
            found.append(price)
        if len(found) > MAX_PRICES:
            problems.append(ConfigError(f"{file}:{line}", "", f"has more than {MAX_PRICES} prices"))
        if len(found) > MAX_PRICES or len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        raise ConfigProblemsError(tuple(problems))
    return tuple(found)


def combined_prices(prices: tuple[PriceConfig, ...], file: Path | None, currency: str) -> tuple[PriceConfig, ...]:
    """Return the prices of the configuration and of a CSV file.

    Args:
        prices: prices of the configuration.
        file: CSV file, or None.
        currency: currency of all prices.

    Raises:
        ConfigProblemsError: if the file is invalid, or has a price that the configuration has too.
    """
    if file is None:
        return prices
    known = {one.key for one in prices}
    more = read_prices(file, currency)
    for one in more:
        if one.key in known:
            reason = f"the price of {one.model!r} from {one.valid_from.isoformat()} is also in [[usage.price]]"
            raise ConfigProblemsError((ConfigError(str(file), "", reason),))
    return (*prices, *more)


def _text(file: str, content: bytes) -> str:
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(file, "", f"exceeds {MAX_FILE_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise ConfigError(f"{file}:{line}", f"byte {column}", "is not UTF-8") from error


def _rows(file: str, content: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line and cells of each row that is not empty."""
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    line = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ConfigProblemsError((ConfigError(f"{file}:{line}", "", f"is not CSV: {error}"),)) from error
        if any(cell.strip() for cell in cells):
            yield line, cells
        line = reader.line_num + 1


def _price(file: str, header: _CsvHeader, line: int, cells: list[str], currency: str) -> PriceConfig:
    """Return the price of a row. Raises ConfigError with its column."""
    where = f"{file}:{line}"
    if len(cells) != len(header.names):
        raise ConfigError(where, "", f"has {len(cells)} columns, the header has {len(header.names)}")
    texts = {name: cell.strip() for name, cell in zip(header.names, cells, strict=True) if cell.strip()}
    stated = texts.pop("currency", currency)
    if stated != currency:
        reason = f"{stated!r:.40} is not the `currency` of [usage], {currency!r}: all prices have one currency"
        raise ConfigError(where, header.place("currency"), reason)
    missing = [name for name in REQUIRED if name not in texts]
    if missing:
        raise ConfigError(where, header.place(missing[0]), "is empty")
    try:
        return msgspec.convert(texts, PriceConfig, strict=False)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, InvalidValueError):
            reason = f"{cause.reason}; got {texts.get(cause.key)!r}"
            raise ConfigError(where, header.place(cause.key), reason) from error
        reason, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        raise ConfigError(where, header.place(name), f"{reason}; got {texts.get(name)!r:.80}") from error
