"""The exporter port: a snapshot rendered as bytes."""

from typing import Protocol

from gpufleet.model.snapshot import Snapshot


class Exporter(Protocol):
    """Renders a complete snapshot in the format of another system."""

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the complete page or document."""
        ...
