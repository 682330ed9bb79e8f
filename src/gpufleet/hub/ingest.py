"""Taking a batch: look whose it is, make it durable, remember that it is held. What is returned may be acknowledged."""

import asyncio
import enum
from collections.abc import Callable, Container
from concurrent.futures import Executor

import msgspec

from gpufleet.codecs.batch import decode, weigh
from gpufleet.hub.conflicts import Conflicts
from gpufleet.hub.counters import Counters
from gpufleet.hub.digests import digest_of
from gpufleet.hub.ledger import Ledger, key_of
from gpufleet.hub.liveness.senders import Word
from gpufleet.hub.unpacked import Unpacked
from gpufleet.hub.wal import Wal
from gpufleet.model.errors import GpufleetError, WireError
from gpufleet.model.ledger import SequenceKey
from gpufleet.model.wire import WireBatch

SMALL_BYTES = 256 << 10
"""What unpacks to more is unpacked beside the event loop, which it would hold up."""


class ForeignClusterError(GpufleetError):
    """The batch is of a cluster that this hub does not serve."""


class OtherClusterError(GpufleetError):
    """The batch is of another cluster than its sender is bound to."""


class EpochConflictError(GpufleetError):
    """Another machine counts under the batch's epoch: it is not held, and cannot be until it comes under another."""


class TooManySendersError(GpufleetError):
    """The batch would begin a sender or an epoch more than its cluster may have.

    Attributes:
        field: which of the two.
    """

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field


class TurnedAwayError(GpufleetError):
    """The next hub of this relay does not take what came of that sender before: this is not held either."""


class Standing(enum.StrEnum):
    """What became of a batch that may be acknowledged."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"


class Taken(msgspec.Struct, frozen=True):
    """The acknowledgement."""

    status: Standing
    seq: int


class Ingest:
    """Takes batches. Lives on the event loop; at most one copy of a batch is on its way to the disk.

    `decoding` has one thread: two large batches are never unpacked at once. `accepted` is told of each batch once it
    is durable. `conflicts` remembers whose epoch another one counts under. `unpacked` is handed the small batches, for
    who writes them to the store.
    """

    def __init__(
        self,
        *,
        wal: Wal,
        ledger: Ledger,
        clusters: Container[str],
        counters: Counters,
        decoding: Executor,
        conflicts: Conflicts,
        turned_away: Callable[[WireBatch], str] = lambda _: "",
        accepted: Callable[[Word], None] | None = None,
        unpacked: Unpacked | None = None,
    ) -> None:
        self._wal = wal
        self._decoding = decoding
        self._ledger = ledger
        self._clusters = clusters
        self._counters = counters
        self._conflicts = conflicts
        self._turned_away = turned_away
        self._accepted = accepted
        self._coming: dict[str, set[SequenceKey]] = {}  # runs of which nothing is held yet, by cluster
        self._unpacked = unpacked
        self._in_flight: dict[tuple[SequenceKey, int], tuple[asyncio.Task[None], int]] = {}

    async def take(self, body: bytes, received_at: int, bound_to: str | None = None, *, relayed: bool = False) -> Taken:
        """Make a batch durable, unless it is held already.

        `bound_to` is the only cluster that its sender may post for, if it is bound to one. `relayed` says that it came
        by a relay, where it may have waited.

        Raises:
            WireError: if the body is not a batch; its subclasses say when it is of another version or too large.
            OtherClusterError: if its cluster is not the one that its sender is bound to.
            ForeignClusterError: if its cluster is not served here.
            TooManySendersError: if its cluster has no room for another sender, or another epoch.
            TurnedAwayError: if the next hub does not take its sender's.
            EpochConflictError: if its epoch is another machine's too; its sender must take a new one.
            SpoolError: if it cannot be made durable now; it must be sent again.
        """
        weight = weigh(body)
        batch, digest = _read(body) if weight <= SMALL_BYTES else await self._read_beside(body)
        if bound_to is not None and batch.cluster != bound_to:
            raise OtherClusterError(f"the token posts for cluster {bound_to!r}, and the batch is of {batch.cluster!r}")
        if batch.cluster not in self._clusters:
            raise ForeignClusterError(f"cluster {batch.cluster!r} is not served here: register it")
        key = key_of(batch)
        self._check_room(key)
        if self._ledger.has(key, batch.seq, digest):
            return self._duplicate(batch.seq)
        words = self._ledger.contradiction(key, batch)
        append, begun = self._in_flight.get((key, batch.seq), (None, None))
        if append is not None and begun != digest:
            words = f"number {batch.seq} came with another content"
        if words:
            raise self._conflict(batch, words, received_at)
        if append is not None:
            await asyncio.shield(append)
            return self._duplicate(batch.seq)
        if self._ledger.is_full(key, batch.seq):
            raise WireError("seq", f"{batch.seq} opens one hole too many in epoch {batch.epoch}: start a new epoch")
        if words := self._turned_away(batch):
            raise TurnedAwayError(f"the next hub does not take it yet: {words}")
        # A task of its own: a client that goes away must not leave the ledger and the disk in disagreement.
        word = Word(batch=batch, received_at=received_at, known_epoch=self._ledger.knows(key), relayed=relayed)
        append = asyncio.create_task(self._append(key, word, body, digest, weight))
        self._in_flight[key, batch.seq] = (append, digest)
        if not self._ledger.knows(key):
            self._coming.setdefault(key.cluster, set()).add(key)
        await asyncio.shield(append)
        self._counters.accepted += 1
        return Taken(Standing.ACCEPTED, batch.seq)

    def _check_room(self, key: SequenceKey) -> None:
        coming = self._coming.get(key.cluster, set())
        if key in coming or self._ledger.knows(key):
            return
        field, words = self._ledger.refusal(key, len(coming))
        if field:
            raise TooManySendersError(field, words)

    async def _read_beside(self, body: bytes) -> tuple[WireBatch, int]:
        return await asyncio.get_running_loop().run_in_executor(self._decoding, _read, body)

    async def _append(self, key: SequenceKey, word: Word, body: bytes, digest: int, weight: int) -> None:
        try:
            number = await self._wal.append(word.received_at, body)
            self._ledger.hold(key, word.batch, digest, word.received_at)
            if self._unpacked is not None and weight <= SMALL_BYTES:
                self._unpacked.keep(number, word.batch, digest, weight)
            if self._accepted is not None:
                self._accepted(word)
        finally:
            del self._in_flight[key, word.batch.seq]
            self._coming.get(key.cluster, set()).discard(key)

    def _conflict(self, batch: WireBatch, words: str, at: int) -> EpochConflictError:
        self._conflicts.note(batch, words, at)
        return EpochConflictError(f"{words}: two machines count under epoch {batch.epoch}; start a new epoch")

    def _duplicate(self, seq: int) -> Taken:
        self._counters.duplicates += 1
        return Taken(Standing.DUPLICATE, seq)


def _read(body: bytes) -> tuple[WireBatch, int]:
    return decode(body), digest_of(body)
