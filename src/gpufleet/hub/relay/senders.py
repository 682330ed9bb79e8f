"""State of senders at a relay: held batches and the senders seen since the start, as a relay keeps no registry.

The next hub may reject single batches temporarily, because it does not serve their cluster or does not read their
format version. Such batches stay in the relay's log. So that they do not accumulate, the relay rejects further batches
of the same sender, or of the whole cluster if the cluster is not served, until one of the held batches is accepted. The
senders keep the rejected batches.
"""

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.delivery.post import HubAnswer
from gpufleet.hub.liveness.senders import SenderFreshness, SenderReport, Senders
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.query.records import sender_record
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.log import WalRecord
from gpufleet.hub.receive.sequences import EpochConflicts, Intervals
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.errors import WireError
from gpufleet.model.stored.ledger import SequenceKey
from gpufleet.model.wire.batch import WireBatch

CARRY_AFTER = 20
"""Rejections (ten minutes) after which a body is rewritten at the end of the log, so that its old file can go."""

_CLUSTER_ERRORS = frozenset({"foreign_cluster", "other_cluster"})
_HoldKey = tuple[str, str]
_WHOLE_CLUSTER = ""


class _HeldBody(msgspec.Struct):
    key: _HoldKey | None
    detail: str
    refusals: int = 0


class HeldBatches:
    """Batches held by a relay because the next hub rejects them temporarily. Use it from the event loop."""

    def __init__(self) -> None:
        self._bodies: dict[int, _HeldBody] = {}
        self._held: dict[_HoldKey, set[int]] = {}

    def __len__(self) -> int:
        """Return the number of held bodies."""
        return len(self._bodies)

    def note(self, record: WalRecord, answer: HubAnswer) -> bool:
        """Record a rejection of a body; return whether to rewrite it at the end of the log."""
        body = self._bodies.get(record.seq)
        if body is None:
            body = self._bodies[record.seq] = _HeldBody(_hold_key(record, answer), str(answer))
            if body.key is not None:
                self._held.setdefault(body.key, set()).add(record.seq)
        body.refusals += 1
        return body.refusals >= CARRY_AFTER

    def move(self, seq: int, to: int) -> None:
        """Change a body's number in the log and reset its rejections."""
        body = self._bodies.pop(seq)
        self._bodies[to] = body
        body.refusals = 0
        if body.key is not None:
            held = self._held[body.key]
            held.discard(seq)
            held.add(to)

    def release(self, seq: int) -> None:
        """Remove a body that was accepted or set aside."""
        body = self._bodies.pop(seq, None)
        if body is None or body.key is None:
            return
        held = self._held[body.key]
        held.discard(seq)
        if not held:
            del self._held[body.key]

    def refusal(self, batch: WireBatch) -> str:
        """Return the next hub's message for which a batch must be rejected, or an empty text."""
        for key in ((batch.cluster, batch.sender), (batch.cluster, _WHOLE_CLUSTER)):
            held = self._held.get(key)
            if held:
                return self._bodies[next(iter(held))].detail
        return ""


def _hold_key(record: WalRecord, answer: HubAnswer) -> _HoldKey | None:
    try:
        batch = decode(record.body)
    except WireError:
        return None
    return batch.cluster, _WHOLE_CLUSTER if answer.error in _CLUSTER_ERRORS else batch.sender


class RelaySenders:
    """Senders seen by a relay since it started. Use it from the event loop."""

    def __init__(self, ledger: Ledger, conflicts: EpochConflicts, senders: Senders) -> None:
        """Connect the relay's ledger, its epoch conflicts and the liveness of its senders."""
        self._ledger = ledger
        self._conflicts = conflicts
        self._senders = senders
        self._lowest: dict[SequenceKey, int] = {}

    def note(self, report: SenderReport) -> None:
        """Record an accepted batch."""
        batch = report.batch
        key = SequenceKey(batch.cluster, batch.sender, batch.epoch)
        self._senders.note(msgspec.structs.replace(report, known_epoch=key in self._lowest))
        self._lowest[key] = min(batch.seq, self._lowest.get(key, batch.seq))

    def records(self, now: int) -> tuple[SenderRecord, ...]:
        """Return all senders by cluster and name. Numbers below the lowest seen here do not count as missing."""
        instant = LivenessSnapshot(self._senders, now=now, unflushed_since=None)
        runs: dict[tuple[str, str], list[tuple[str, Intervals, Intervals]]] = {}
        for key, held in self._ledger.runs():
            runs.setdefault((key.cluster, key.sender), []).append((key.epoch, held, self._since(key, held)))
        return tuple(
            self._record(one, runs.get((one.cluster, one.sender), []), instant) for one in instant.list_freshness()
        )

    def _record(
        self, freshness: SenderFreshness, runs: list[tuple[str, Intervals, Intervals]], instant: LivenessSnapshot
    ) -> SenderRecord:
        who = freshness.cluster, freshness.sender
        conflict = self._conflicts.of(*who)
        return sender_record(freshness, runs, instant.sender(freshness, conflict=conflict), instant.now, conflict)

    def _since(self, key: SequenceKey, held: Intervals) -> Intervals:
        before = self._lowest.get(key, 1) - 1
        return Intervals([(1, before), *held.ranges]) if before else held
