"""Who posted to a relay since it started: a relay keeps no registry."""

from collections.abc import Iterator

import msgspec

from gpufleet.hub.conflicts import Conflicts
from gpufleet.hub.intervals import Intervals
from gpufleet.hub.inventory import GAPS_SHOWN, sender_record
from gpufleet.hub.ledger import Ledger
from gpufleet.hub.liveness.judging import Instant
from gpufleet.hub.liveness.senders import SenderLife, Senders, Word
from gpufleet.model.answer import EpochRecord, SenderRecord
from gpufleet.model.ledger import SequenceKey


class Relayed:
    """Senders as one relay heard them. Lives on the event loop."""

    def __init__(self, ledger: Ledger, conflicts: Conflicts, senders: Senders) -> None:
        """Take the ledger of what this relay has taken, whose epochs it turned away, and who spoke when."""
        self._ledger = ledger
        self._conflicts = conflicts
        self._senders = senders
        self._lowest: dict[SequenceKey, int] = {}

    def note(self, word: Word) -> None:
        """Remember that a batch came."""
        batch = word.batch
        key = SequenceKey(batch.cluster, batch.sender, batch.epoch)
        self._senders.note(msgspec.structs.replace(word, known_epoch=key in self._lowest))
        self._lowest[key] = min(batch.seq, self._lowest.get(key, batch.seq))

    def records(self, now: int) -> tuple[SenderRecord, ...]:
        """Return every sender, by cluster and name. What came before the lowest number seen here is not missing."""
        instant = Instant(self._senders, now=now, flush_lag_seconds=0.0)
        runs: dict[tuple[str, str], list[tuple[str, Intervals]]] = {}
        for key, held in self._ledger.runs():
            runs.setdefault((key.cluster, key.sender), []).append((key.epoch, held))
        return tuple(self._record(life, runs.get((life.cluster, life.sender), []), instant) for life in instant.lives())

    def _record(self, life: SenderLife, runs: list[tuple[str, Intervals]], instant: Instant) -> SenderRecord:
        who = life.cluster, life.sender
        conflict = self._conflicts.of(*who)
        record = sender_record(life, runs, instant.sender(life, conflict=conflict), instant.now, conflict)
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
