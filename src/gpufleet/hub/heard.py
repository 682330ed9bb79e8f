"""The newest word of a sender. Pure."""

from gpufleet.model.ledger import Heard
from gpufleet.model.time import NANOS
from gpufleet.model.wire import WireBatch

AHEAD_NS = 60 * NANOS
"""A word that was sent so long after it came is of a clock that is ahead: no later one can be told by it."""


def is_news(before: Heard | None, batch: WireBatch, *, known_epoch: bool) -> bool:
    """Tell whether a batch is newer than the newest word of its sender, or else backlog, which follows it.

    Within an epoch its numbers tell, not the clocks, which may be set back. An epoch that was never heard of is the
    newest. A sender may have two (its disk refuses for a while): between those, its own clock is all there is, and not
    that where the newest word is of a clock that was ahead: once it is right again, nothing would be news until then.
    A clock that is right shows no time long before that word came: what does is backlog, of a clock still ahead.
    """
    if before is None or not known_epoch:
        return True
    if before.epoch == batch.epoch:
        return batch.seq > before.seq
    was_ahead = before.sent_at - before.received_at > AHEAD_NS
    return batch.sent_at >= (before.received_at - AHEAD_NS if was_ahead else before.sent_at)


def heard(before: Heard | None, batch: WireBatch, *, received_at: int, reported_at: int = 0) -> Heard:
    """Return the newest word of a sender after one that is news; a heartbeat stays until the next one."""
    return Heard(
        epoch=batch.epoch,
        seq=batch.seq,
        sent_at=batch.sent_at,
        received_at=received_at,
        reported_at=reported_at,
        heartbeat=batch.heartbeat or (before.heartbeat if before else None),
    )
