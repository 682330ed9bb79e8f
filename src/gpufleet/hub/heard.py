"""The newest word of a sender. Pure."""

from gpufleet.model.ledger import Heard
from gpufleet.model.wire import WireBatch


def hear(before: Heard | None, batch: WireBatch, received_at: int) -> Heard:
    """Return what is known of a sender after a batch of it; backlog, which follows the newest, changes nothing.

    Which of two batches is newer their numbers tell, not the clocks, which may be set back.
    """
    if before is not None and before.epoch == batch.epoch and before.seq > batch.seq:
        return before
    return Heard(
        epoch=batch.epoch,
        seq=batch.seq,
        sent_at=batch.sent_at,
        received_at=received_at,
        heartbeat=batch.heartbeat or (before.heartbeat if before else None),
    )
