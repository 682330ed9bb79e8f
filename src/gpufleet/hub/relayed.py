"""Who posted to a relay since it started: a relay keeps no registry."""

import msgspec

from gpufleet.hub.conflicts import Conflicts
from gpufleet.hub.intervals import Intervals
from gpufleet.hub.inventory import sender_record
from gpufleet.hub.ledger import Ledger
from gpufleet.hub.liveness.judging import Instant
from gpufleet.hub.liveness.senders import SenderLife, Senders, Word
from gpufleet.model.answer import SenderRecord
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
        instant = Instant(self._senders, now=now, unflushed_since=None)
        runs: dict[tuple[str, str], list[tuple[str, Intervals, Intervals]]] = {}
        for key, held in self._ledger.runs():
            runs.setdefault((key.cluster, key.sender), []).append((key.epoch, held, self._since(key, held)))
        return tuple(self._record(life, runs.get((life.cluster, life.sender), []), instant) for life in instant.lives())

    def _record(self, life: SenderLife, runs: list[tuple[str, Intervals, Intervals]], instant: Instant) -> SenderRecord:
        who = life.cluster, life.sender
        conflict = self._conflicts.of(*who)
        return sender_record(life, runs, instant.sender(life, conflict=conflict), instant.now, conflict)

    def _since(self, key: SequenceKey, held: Intervals) -> Intervals:
        before = self._lowest.get(key, 1) - 1
        return Intervals([(1, before), *held.ranges]) if before else held
