"""What GPUs cost, by model and time. Pure."""

from collections.abc import Sequence

import msgspec

from gpufleet.model.time import to_ns
from gpufleet.model.usage import Price


class Prices(msgspec.Struct, frozen=True):
    """What GPUs cost; `currency` is None where nobody said."""

    currency: str | None = None
    prices: tuple[Price, ...] = ()


def price_of(model: str | None, at: int, prices: Sequence[Price]) -> float | None:
    """Return what an hour of a GPU costs at an instant, nanoseconds since 1970; None where no price is in force."""
    mine = [one for one in prices if model is not None and one.model.casefold() == model.casefold()]
    valid = [one for one in mine if to_ns(one.valid_from) <= at]
    return max(valid, key=lambda one: one.valid_from).per_gpu_hour if valid else None
