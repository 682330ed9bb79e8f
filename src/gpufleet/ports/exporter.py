"""The exporter port: a snapshot rendered as bytes."""

from typing import Protocol

from gpufleet.model.reading import Round as Round
from gpufleet.model.snapshot import Snapshot

# --- out ----------------------------------------------------------------------------------------


class Exporter(Protocol):
    """Turns a completed snapshot into what someone else reads."""

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the whole page or document."""
        ...
