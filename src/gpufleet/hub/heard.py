"""The newest word of a sender. Pure."""

import msgspec

from gpufleet.model.ledger import Heard
from gpufleet.model.wire import WireBatch


def hear(before: Heard | None, batch: WireBatch, received_at: int) -> Heard:
    """Return what is known of a sender after a batch of it.

    A batch that was made earlier than one that is known already (backlog comes after the newest) tells that the sender
    lives, and nothing newer. Which is earlier its number tells, not its clock, which may be set.
    """
    if before is not None and before.epoch == batch.epoch and before.seq > batch.seq:
        return msgspec.structs.replace(before, received_at=max(before.received_at, received_at))
    if before is not None and before.received_at > received_at:
        return before
    return Heard(
        epoch=batch.epoch,
        seq=batch.seq,
        sent_at=batch.sent_at,
        received_at=received_at,
        heartbeat=batch.heartbeat or (before.heartbeat if before else None),
    )
