"""Epochs under which two machines were found to count, since this process started."""

import logging
from collections.abc import Mapping

import msgspec

from gpufleet.model.answer import EpochConflict
from gpufleet.model.time import to_datetime
from gpufleet.model.wire import WireBatch

LOG = logging.getLogger(__name__)

SENDERS_KEPT = 10_000
"""Senders whose newest conflict is remembered; beyond it, the one that has been quiet for longest goes."""


class Conflicts:
    """The newest conflict of each sender. Lives on the event loop."""

    def __init__(self) -> None:
        self._by_sender: dict[tuple[str, str], EpochConflict] = {}

    def note(self, batch: WireBatch, words: str, at: int) -> None:
        """Remember that a batch was turned away, and why; `at` is the hub's clock in nanoseconds since 1970."""
        who = batch.cluster, batch.sender
        before = self._by_sender.pop(who, None)
        now = to_datetime(at)
        if before is not None and before.epoch == batch.epoch:
            found = msgspec.structs.replace(before, batches=before.batches + 1, last_at=now, detail=words)
        else:
            found = EpochConflict(epoch=batch.epoch, batches=1, first_at=now, last_at=now, detail=words)
            LOG.warning("two machines post as %s of cluster %s under epoch %s: %s", *reversed(who), batch.epoch, words)
        self._by_sender[who] = found
        if len(self._by_sender) > SENDERS_KEPT:
            del self._by_sender[next(iter(self._by_sender))]

    def of(self, cluster: str, sender: str) -> EpochConflict | None:
        """Return the newest conflict of a sender."""
        return self._by_sender.get((cluster, sender))

    def known(self) -> Mapping[tuple[str, str], EpochConflict]:
        """Return the newest conflict of each sender that has one, by cluster and sender, as it is now."""
        return dict(self._by_sender)
