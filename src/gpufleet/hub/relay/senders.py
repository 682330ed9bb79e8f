"""Bodies that a relay has acknowledged, and that the next hub will not take yet though it takes others.

Their cluster is not served there, or their format is newer than that hub. They wait in the log, where they would pile
up: so the next ones of the same sender, or of the whole cluster where it is the cluster that is not taken, are turned
away until one that waits gets through. Their senders keep them.

Who posted to a relay since it started: a relay keeps no registry.
"""

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.delivery.post import Answer
from gpufleet.hub.liveness.senders import SenderLife, Senders, Word
from gpufleet.hub.liveness.states import Instant
from gpufleet.hub.query.records import sender_record
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.log import WalRecord
from gpufleet.hub.receive.sequences import Conflicts, Intervals
from gpufleet.model.api.answer import SenderRecord
from gpufleet.model.errors import WireError
from gpufleet.model.stored.ledger import SequenceKey
from gpufleet.model.wire.batch import WireBatch

CARRY_AFTER = 20
"""Refusals after which a body is written to the log's end, so that the file that it was in may go: ten minutes."""

_OF_THE_CLUSTER = frozenset({"foreign_cluster", "other_cluster"})
_Whose = tuple[str, str]
_EVERYBODY = ""


class _Body(msgspec.Struct):
    whose: _Whose | None
    words: str
    refusals: int = 0


class Held:
    """What one relay holds back. Lives on the event loop."""

    def __init__(self) -> None:
        self._bodies: dict[int, _Body] = {}
        self._turned_away: dict[_Whose, set[int]] = {}

    def __len__(self) -> int:
        """Return how many bodies wait so."""
        return len(self._bodies)

    def note(self, record: WalRecord, answer: Answer) -> bool:
        """Remember that a body was not taken once more; return whether it is time to carry it to the log's end."""
        body = self._bodies.get(record.seq)
        if body is None:
            body = self._bodies[record.seq] = _Body(_whose(record, answer), str(answer))
            if body.whose is not None:
                self._turned_away.setdefault(body.whose, set()).add(record.seq)
        body.refusals += 1
        return body.refusals >= CARRY_AFTER

    def move(self, seq: int, to: int) -> None:
        """Remember a body under another number, as if it had just been refused for the first time."""
        body = self._bodies.pop(seq)
        self._bodies[to] = body
        body.refusals = 0
        if body.whose is not None:
            waiting = self._turned_away[body.whose]
            waiting.discard(seq)
            waiting.add(to)

    def release(self, seq: int) -> None:
        """Forget a body that got through or was set aside."""
        body = self._bodies.pop(seq, None)
        if body is None or body.whose is None:
            return
        waiting = self._turned_away[body.whose]
        waiting.discard(seq)
        if not waiting:
            del self._turned_away[body.whose]

    def refusal(self, batch: WireBatch) -> str:
        """Return the next hub's words for which a batch is turned away; empty where it is not."""
        for whose in ((batch.cluster, batch.sender), (batch.cluster, _EVERYBODY)):
            waiting = self._turned_away.get(whose)
            if waiting:
                return self._bodies[next(iter(waiting))].words
        return ""


def _whose(record: WalRecord, answer: Answer) -> _Whose | None:
    try:
        batch = decode(record.body)
    except WireError:
        return None
    return batch.cluster, _EVERYBODY if answer.error in _OF_THE_CLUSTER else batch.sender


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
