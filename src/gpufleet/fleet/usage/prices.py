"""Prices of GPU-hours: the price of a unit at an instant. Pure.

A price applies to a unit if each field that it gives equals the unit's at that time; an unknown field equals none. Of
several prices that apply, the most specific one counts: by commitment first, then by instance type, then by region.
"""

from collections.abc import Iterable, Mapping

from gpufleet.fleet.usage.units import PhysicalUnit, UnitPlacement
from gpufleet.model.api.usage import Price
from gpufleet.model.time import to_ns

_Rank = tuple[bool, bool, bool, int]
"""Whether a price has a commitment, instance type and region, and its start, nanoseconds since 1970."""


class PriceTable:
    """Prices by model.

    Args:
        prices: in any order. A price holds until its end, or until the next one with the same model, instance type,
            region and commitment.
        currency: currency of all prices; None if there are none.
        commitments: commitment by which a cluster is paid, such as `reserved-1y`, by cluster.
    """

    def __init__(
        self, prices: Iterable[Price] = (), currency: str | None = None, commitments: Mapping[str, str] = {}
    ) -> None:
        self._prices = tuple(prices)
        self._commitments = dict(commitments)
        self.currency = currency if self._prices else None
        self._of_model: dict[str, list[tuple[_Rank, int | None, Price]]] = {}
        for one in self._prices:
            rank = (bool(one.commitment), bool(one.instance_type), bool(one.region), to_ns(one.valid_from))
            end = None if one.valid_to is None else to_ns(one.valid_to)
            self._of_model.setdefault(one.model.casefold(), []).append((rank, end, one))
        for own in self._of_model.values():
            own.sort(key=lambda found: found[0], reverse=True)

    def __bool__(self) -> bool:
        """Return whether there is a price."""
        return bool(self._prices)

    @property
    def boundaries(self) -> list[int]:
        """Instants at which a price can change, nanoseconds since 1970."""
        ends = [to_ns(one.valid_to) for one in self._prices if one.valid_to is not None]
        return sorted({*(to_ns(one.valid_from) for one in self._prices), *ends})

    @property
    def needs_placement(self) -> bool:
        """Whether a price depends on the instance type or region."""
        return any(one.instance_type or one.region for one in self._prices)

    def find(self, unit: PhysicalUnit, at: int) -> float | None:
        """Return the price of an hour of a unit at an instant, nanoseconds since 1970; None if none is in force."""
        replaced: set[tuple[str | None, ...]] = set()
        placement = unit.placed_at(at)
        for (_, _, _, begin), end, price in self._of_model.get((unit.model_at(at) or "").casefold(), ()):
            key = (price.commitment, price.instance_type, price.region)
            if begin > at or key in replaced or not self._applies(price, unit, placement):
                continue
            if end is None or at < end:
                return price.per_gpu_hour
            replaced.add(key)  # earlier prices of the same key ended when this one began
        return None

    def _applies(self, price: Price, unit: PhysicalUnit, placement: UnitPlacement) -> bool:
        return (
            price.commitment in (None, self._commitments.get(unit.cluster))
            and price.instance_type in (None, placement.instance_type)
            and price.region in (None, placement.region)
        )
