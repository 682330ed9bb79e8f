"""The holder port: holders of devices."""

from typing import Protocol

from gpufleet.model.holdings import Holding


class HolderSource(Protocol):
    """Source of device holdings."""

    async def holdings(self) -> tuple[Holding, ...]:
        """Return the current holdings; devices are named by identity."""
        ...
