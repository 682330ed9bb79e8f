"""The holder port: who holds which device."""

from typing import Protocol

from gpufleet.model.holding import Holding
from gpufleet.model.reading import Round as Round


class HolderSource(Protocol):
    """Tells who holds which device."""

    async def holdings(self) -> tuple[Holding, ...]:
        """Return what is held now, by identity."""
        ...
