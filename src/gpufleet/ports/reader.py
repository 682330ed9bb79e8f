"""The reader port: one kind of source, read lane by lane."""

from typing import Protocol

from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.reading import Round as Round

# --- readers ------------------------------------------------------------------------------------


class Reader(Protocol):
    """Reads one kind of thing."""

    @property
    def name(self) -> str:
        """Its name in samples, status and self-metrics."""
        ...

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes it has something to read on."""
        ...

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane. Opens whatever it needs; the caller never runs two passes at once.

        Raises:
            ReaderError: if it cannot work at all; carries the reason and the source's own words.
        """
        ...

    async def close(self) -> None:
        """Give back what it holds; a later `read` opens it again.

        Raises:
            ReaderError: if something is held all the same, because the driver does not let go of it.
        """
        ...
