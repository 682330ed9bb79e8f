"""What the agent counts about itself."""

import msgspec

from gpufleet.sending.outlet import OutletStats


class LaneStats(msgspec.Struct):
    """Passes of one lane of one reader since the agent started."""

    passes: int = 0
    failures: int = 0


class SendStats(msgspec.Struct):
    """The way to the hub since the agent started.

    Attributes:
        batches: made.
        lost: batches that could not be made, or that the disk refused and memory had no room for.
        acknowledged: batches that the hub has taken.
        refused: batches that the hub will never take, set aside.
        failures: posts that will be made again.
        renewals: new epochs taken because another machine counts under the same one.
        last_success: nanoseconds since 1970 of the newest acknowledgement, or None.
        last_error: words of the newest failure; empty after a success.
    """

    batches: int = 0
    lost: int = 0
    acknowledged: int = 0
    refused: int = 0
    failures: int = 0
    renewals: int = 0
    last_success: int | None = None
    last_error: str = ""


class QueueStats(msgspec.Struct):
    """What waits as it is now.

    Attributes:
        records, bytes: that wait, on disk and in memory.
        dropped: records that the spool dropped, since it was made, for want of room or for their age.
        in_memory: records that only memory holds, because the disk refused them.
    """

    records: int = 0
    bytes: int = 0
    dropped: int = 0
    in_memory: int = 0


class AgentStats(msgspec.Struct):
    """All of it.

    Attributes:
        started_at: nanoseconds since 1970.
        lanes: by reader and lane.
        send, queue: None when no hub is configured.
        exports: ways to other systems, by name.
    """

    started_at: int
    lanes: dict[tuple[str, str], LaneStats]
    send: SendStats | None = None
    queue: QueueStats | None = None
    exports: dict[str, OutletStats] = {}
