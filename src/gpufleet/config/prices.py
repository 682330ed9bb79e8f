"""What GPUs cost."""

import datetime as dt
from typing import Annotated

import msgspec

from gpufleet.config.load import ImpossibleValueError


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an hour of a GPU costs, from an instant on until the next price of its model.

    Attributes:
        model: as the driver names it, in any case, such as `NVIDIA H200`.
        per_gpu_hour: in the `currency` of `[usage]`.
        valid_from: RFC 3339 with a time zone, such as `2026-01-01T00:00:00Z`.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    per_gpu_hour: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    valid_from: Annotated[dt.datetime, msgspec.Meta(tz=True)]


class UsageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What usage comes to.

    Attributes:
        currency: of all prices, such as `EUR`.
        price: what GPUs cost, each a table `[[usage.price]]`.
    """

    currency: Annotated[str, msgspec.Meta(max_length=16)] = ""
    price: Annotated[tuple[PriceConfig, ...], msgspec.Meta(max_length=1000)] = ()

    def __post_init__(self) -> None:
        """Refuse prices in no currency, and two of one model at one time."""
        if self.price and not self.currency:
            raise ImpossibleValueError("currency", "must be given where there are prices")
        named = [(one.model.casefold(), one.valid_from) for one in self.price]
        if len(set(named)) < len(named):
            raise ImpossibleValueError("price", "two prices of one model are valid from the same instant")
