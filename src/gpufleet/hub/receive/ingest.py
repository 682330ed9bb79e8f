"""Taking a batch: look whose it is, make it durable, remember that it is held. What is returned may be acknowledged."""

import asyncio
import enum
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Executor

import msgspec

from gpufleet.codecs.batch import decode, weigh
from gpufleet.hub.liveness.senders import Word
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.decoded import Unpacked
from gpufleet.hub.receive.ledger import Ledger, key_of
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.sequences import Conflicts, digest_of
from gpufleet.model.errors import GpufleetError, SpoolError, WireError
from gpufleet.model.stored.ledger import SequenceKey
from gpufleet.model.wire.batch import WireBatch

SMALL_BYTES = 256 << 10
"""What unpacks to more is unpacked beside the event loop, which it would hold up."""

BODIES_A_GROUP = 16
"""Small bodies that are taken together, before others have a turn on the event loop."""


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


class _Coming(msgspec.Struct, frozen=True):
    """A batch on its way to the disk."""

    key: SequenceKey
    word: Word
    body: bytes
    digest: int
    weight: int


class _Group:
    """Batches that go to the disk together. `coming` grows until the task begins, which is not before it is awaited."""

    def __init__(self) -> None:
        self.coming: list[_Coming] = []
        self.appended: asyncio.Task[list[int | SpoolError]] | None = None

    async def outcome(self, place: int) -> SpoolError | None:
        """Return why the batch of that place is not durable, once that is known; None where it is."""
        assert self.appended is not None, "begun with the first batch"
        try:
            number = (await asyncio.shield(self.appended))[place]
        except SpoolError as error:
            return error
        return number if isinstance(number, SpoolError) else None


class _OnItsWay(msgspec.Struct, frozen=True):
    """What the answer to a body waits for."""

    group: _Group
    place: int
    digest: int
    standing: Standing
    seq: int


def groups(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield bodies in their order as they may be taken together: some small ones, or one large one alone."""
    group: list[bytes] = []
    for body in bodies:
        is_large = weigh(body) > SMALL_BYTES
        if group and (is_large or len(group) == BODIES_A_GROUP):
            yield group
            group = []
        if is_large:
            yield [body]
        else:
            group.append(body)
    if group:
        yield group


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
        self._in_flight: dict[tuple[SequenceKey, int], _OnItsWay] = {}

    async def take(
        self, body: bytes, came_at: int, bound_to: str | None = None, *, waited_ns: int | None = None
    ) -> Taken:
        """Make a batch durable, unless it is held already.

        `bound_to` is the only cluster that its sender may post for, if it is bound to one. `waited_ns` is how long it
        waited at relays, as far as those told; None where it came by none.

        Raises:
            WireError: if the body is not a batch; its subclasses say when it is of another version or too large.
            OtherClusterError: if its cluster is not the one that its sender is bound to.
            ForeignClusterError: if its cluster is not served here.
            TooManySendersError: if its cluster has no room for another sender, or another epoch.
            TurnedAwayError: if the next hub does not take its sender's.
            EpochConflictError: if its epoch is another machine's too; its sender must take a new one.
            SpoolError: if it cannot be made durable now; it must be sent again.
        """
        waited = None if waited_ns is None else [waited_ns]
        (taken,) = await self.take_all([body], came_at, bound_to, waited=waited)
        if isinstance(taken, GpufleetError):
            raise taken
        return taken

    async def take_all(
        self,
        bodies: Sequence[bytes],
        came_at: int,
        bound_to: str | None = None,
        *,
        waited: Sequence[int] | None = None,
    ) -> list[Taken | GpufleetError]:
        """Make batches durable together; return for each body in turn what `take` would have returned or raised.

        Between what is unpacked here others have no turn: give it what `groups` says.
        """
        group = _Group()
        judged: list[Taken | _OnItsWay | GpufleetError] = []
        for place, body in enumerate(bodies):
            weight = weigh(body)
            waited_ns = None if waited is None else waited[place]
            try:
                batch, digest = _read(body) if weight <= SMALL_BYTES else await self._read_beside(body)
                judged.append(self._judge(group, body, batch, digest, weight, came_at, bound_to, waited_ns))
            except GpufleetError as error:
                judged.append(_bare(error))
        return [await self._settled(one) if isinstance(one, _OnItsWay) else one for one in judged]

    def _judge(
        self,
        group: _Group,
        body: bytes,
        batch: WireBatch,
        digest: int,
        weight: int,
        came_at: int,
        bound_to: str | None,
        waited_ns: int | None,
    ) -> Taken | _OnItsWay:
        """Return the answer, or what it waits for; what is new joins the group. Raises as `take`."""
        if bound_to is not None and batch.cluster != bound_to:
            raise OtherClusterError(f"the token posts for cluster {bound_to!r}, and the batch is of {batch.cluster!r}")
        if batch.cluster not in self._clusters:
            raise ForeignClusterError(f"cluster {batch.cluster!r} is not served here: register it")
        key = key_of(batch)
        self._check_room(key)
        if self._ledger.has(key, batch.seq, digest):
            return self._duplicate(batch.seq)
        words = self._ledger.contradiction(key, batch)
        begun = self._in_flight.get((key, batch.seq))
        if begun is not None and begun.digest != digest:
            words = f"number {batch.seq} came with another content"
        if words:
            raise self._conflict(batch, words, came_at)
        if begun is not None:
            return msgspec.structs.replace(begun, standing=Standing.DUPLICATE)
        if self._ledger.is_full(key, batch.seq):
            raise WireError("seq", f"{batch.seq} opens one hole too many in epoch {batch.epoch}: start a new epoch")
        if words := self._turned_away(batch):
            raise TurnedAwayError(f"the next hub does not take it yet: {words}")
        known = self._ledger.knows(key)
        # Nothing waits before it is made: a relay that was told the time only after it began says years.
        waited = min(waited_ns or 0, max(0, came_at - batch.sent_at))
        word = Word(
            batch=batch,
            received_at=came_at - waited,
            known_epoch=known,
            relayed=waited_ns is not None,
            waited_ns=waited,
        )
        way = _OnItsWay(group, len(group.coming), digest, Standing.ACCEPTED, batch.seq)
        group.coming.append(_Coming(key, word, body, digest, weight))
        self._in_flight[key, batch.seq] = way
        if not known:
            self._coming.setdefault(key.cluster, set()).add(key)
        if group.appended is None:
            # A task of its own: a client that goes away must not leave the ledger and the disk in disagreement.
            group.appended = asyncio.create_task(self._append(group.coming, came_at))
        return way

    async def _settled(self, way: _OnItsWay) -> Taken | GpufleetError:
        error = await way.group.outcome(way.place)
        if error is not None:
            return error
        if way.standing is Standing.DUPLICATE:
            return self._duplicate(way.seq)
        self._counters.accepted += 1
        return Taken(Standing.ACCEPTED, way.seq)

    def _check_room(self, key: SequenceKey) -> None:
        coming = self._coming.get(key.cluster, set())
        if key in coming or self._ledger.knows(key):
            return
        field, words = self._ledger.refusal(key, len(coming))
        if field:
            raise TooManySendersError(field, words)

    async def _read_beside(self, body: bytes) -> tuple[WireBatch, int]:
        return await asyncio.get_running_loop().run_in_executor(self._decoding, _read, body)

    async def _append(self, coming: Sequence[_Coming], came_at: int) -> list[int | SpoolError]:
        try:
            numbers = await self._wal.append_all(
                came_at, [one.body for one in coming], [one.word.waited_ns for one in coming]
            )
            for one, number in zip(coming, numbers, strict=True):
                if isinstance(number, int):
                    self._hold(one, number)
        finally:
            for one in coming:
                del self._in_flight[one.key, one.word.batch.seq]
                self._coming.get(one.key.cluster, set()).discard(one.key)
        return numbers

    def _hold(self, one: _Coming, number: int) -> None:
        self._ledger.hold(one.key, one.word.batch, one.digest, one.word.received_at + one.word.waited_ns)
        if self._unpacked is not None and one.weight <= SMALL_BYTES:
            self._unpacked.keep(number, one.word.batch, one.digest, one.weight)
        if self._accepted is not None:
            self._accepted(one.word)

    def _conflict(self, batch: WireBatch, words: str, at: int) -> EpochConflictError:
        self._conflicts.note(batch, words, at)
        return EpochConflictError(f"{words}: two machines count under epoch {batch.epoch}; start a new epoch")

    def _duplicate(self, seq: int) -> Taken:
        self._counters.duplicates += 1
        return Taken(Standing.DUPLICATE, seq)


def _bare(error: GpufleetError) -> GpufleetError:
    """Return an error without the frames that it came through: they hold the message, and the list it goes into."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _read(body: bytes) -> tuple[WireBatch, int]:
    return decode(body, as_matrix=True), digest_of(body)
