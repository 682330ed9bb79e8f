"""When a virtual machine got how far: the boot and readiness times that people compare."""

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Value
from gpufleet.model.time import NANOS

_NOT_YET = Absent(Reason.NO_DATA, "not yet")


class Stamps(msgspec.Struct, kw_only=True):
    """Nanoseconds since 1970, each set once.

    Attributes:
        seen: the agent was told of it.
        channel_open: a way into it was open.
        first_answer: somebody inside answered.
        driver_ready: there were readings of a GPU.
    """

    seen: int
    channel_open: int | None = None
    first_answer: int | None = None
    driver_ready: int | None = None

    def readings(self) -> dict[str, Value | Absent]:
        """Return the rows of the catalogue."""
        named = {
            "seen": self.seen,
            "channel_open": self.channel_open,
            "first_answer": self.first_answer,
            "driver_ready": self.driver_ready,
        }
        return {f"guest_{name}_timestamp_seconds": _NOT_YET if at is None else at / NANOS for name, at in named.items()}
