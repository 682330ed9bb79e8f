"""Who posted to a relay since it started: a relay keeps no registry."""

from collections.abc import Iterator

import msgspec

from gpufleet.hub.conflicts import Conflicts
from gpufleet.hub.heard import heard, is_news
from gpufleet.hub.intervals import Intervals
from gpufleet.hub.inventory import GAPS_SHOWN, sender_record
from gpufleet.hub.ledger import Ledger
from gpufleet.model.answer import EpochRecord, SenderRecord
from gpufleet.model.ledger import Heard, SenderState, SequenceKey
from gpufleet.model.wire import WireBatch


class Relayed:
    """Senders as one relay heard them. Lives on the event loop."""

    def __init__(self, ledger: Ledger, conflicts: Conflicts) -> None:
        """Take the ledger of what this relay has taken, and whose epochs it turned away."""
        self._ledger = ledger
        self._conflicts = conflicts
        self._heard: dict[tuple[str, str], Heard] = {}
        self._lowest: dict[SequenceKey, int] = {}

    def note(self, batch: WireBatch, received_at: int) -> None:
        """Remember that a batch came."""
        who = batch.cluster, batch.sender
        key = SequenceKey(batch.cluster, batch.sender, batch.epoch)
        before = self._heard.get(who)
        if is_news(before, batch, known_epoch=key in self._lowest):
            self._heard[who] = heard(before, batch, received_at=received_at)
        self._lowest[key] = min(batch.seq, self._lowest.get(key, batch.seq))

    def records(self, now: int) -> tuple[SenderRecord, ...]:
        """Return every sender, by cluster and name. What came before the lowest number seen here is not missing."""
        runs: dict[tuple[str, str], list[tuple[str, Intervals]]] = {}
        for key, held in self._ledger.runs():
            runs.setdefault((key.cluster, key.sender), []).append((key.epoch, held))
        return tuple(self._record(who, runs.get(who, []), now) for who in sorted(self._heard))

    def _record(self, who: tuple[str, str], runs: list[tuple[str, Intervals]], now: int) -> SenderRecord:
        state = SenderState(cluster=who[0], sender=who[1], heard=self._heard[who])
        record = sender_record(state, runs, now, self._conflicts.of(*who))
        epochs = tuple(self._since(who, runs))
        return msgspec.structs.replace(record, epochs=epochs, missing=sum(one.missing for one in epochs))

    def _since(self, who: tuple[str, str], runs: list[tuple[str, Intervals]]) -> Iterator[EpochRecord]:
        for epoch, held in sorted(runs, key=lambda run: run[0]):
            before = self._lowest.get(SequenceKey(*who, epoch), 1) - 1
            known = Intervals([(1, before), *held.ranges] if before else held.ranges)
            yield EpochRecord(
                epoch=epoch,
                received=len(held),
                highest=held.highest,
                missing=known.missing,
                gaps=known.gaps(GAPS_SHOWN),
            )
