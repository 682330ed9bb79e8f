"""What one pass of one lane of one reader came to."""

import msgspec

from gpufleet.model.absence import Absent
from gpufleet.model.round import Round
from gpufleet.model.status import ReaderStatus


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One pass, ended.

    Attributes:
        status: how the lane is doing after this pass; names reader and lane.
        round: what was read; after a failure, what could be told all the same, or None.
        failure: why the reader could not work at all, or None when it could.
        ended_at: nanoseconds since 1970 when the pass ended.
        ended: the same by the monotonic clock, in seconds.
        withheld: the reader was not asked, because the devices were let go; it holds none.
    """

    status: ReaderStatus
    round: Round | None
    failure: Absent | None
    ended_at: int
    ended: float
    withheld: bool = False
