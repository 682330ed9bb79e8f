"""Bodies that a relay has acknowledged, and that the next hub will not take yet though it takes others.

Their cluster is not served there, or their format is newer than that hub. They wait in the log, where they would pile
up: so the next ones of the same sender, or of the whole cluster where it is the cluster that is not taken, are turned
away until one that waits gets through. Their senders keep them.
"""

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.hub.wal import WalRecord
from gpufleet.model.errors import WireError
from gpufleet.model.wire import WireBatch
from gpufleet.sending.post import Answer

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
