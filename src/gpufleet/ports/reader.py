"""The reader port: one kind of source, read lane by lane."""

from typing import Protocol

from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.reading import Round


class Reader(Protocol):
    """Reader of one kind of source."""

    @property
    def name(self) -> str:
        """Name in samples, status and self-metrics."""
        ...

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Lanes on which the reader reads."""
        ...

    async def read(self, lane: Lane) -> Round:
        """Read one lane once, opening what is needed. The caller never runs two reads at once.

        Raises:
            ReaderError: if the reader cannot work at all, with the reason and the message of the source. The failure
                of an earlier attempt has its age.
        """
        ...

    async def close(self) -> None:
        """Release all resources; a later `read` opens them again.

        Raises:
            ReaderError: if the driver does not release a resource.
        """
        ...
