"""Ingestion of batches: check the cluster and sequence, append to the log, update the ledger, then acknowledge."""

import asyncio
import contextlib
import enum
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager

import msgspec

from gpufleet.codecs.batch import EncodedColumns, content_bytes, decode
from gpufleet.hub.liveness.senders import SenderReport
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.decode_cache import DecodedBatchCache
from gpufleet.hub.receive.ledger import Ledger, key_of
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.machines import MachineAdmission
from gpufleet.hub.receive.sequences import EpochConflicts, digest_of
from gpufleet.model.errors import GpufleetError, SpoolError, WireError
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import SequenceKey
from gpufleet.model.wire.batch import WireBatch

SMALL_BYTES = 256 << 10
"""Bodies that decompress to more are decoded in a thread, so that they do not block the event loop."""

MAX_GROUP_BODIES = 16
"""Maximum number of small bodies processed together without yielding to the event loop."""


class ForeignClusterError(GpufleetError):
    """The batch is of a cluster that this hub does not serve."""


class OtherClusterError(GpufleetError):
    """The batch is of another cluster than its sender is bound to."""


class EpochConflictError(GpufleetError):
    """Another machine uses the batch's epoch: the batch is rejected until it is sent under a new epoch."""


class TooManySendersError(GpufleetError):
    """The batch would exceed its cluster's limit of senders or epochs.

    Attributes:
        field: `sender` or `epoch`.
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field


class UpstreamRefusalError(GpufleetError):
    """The next hub of this relay rejects earlier batches of the sender, so the relay does not accept further ones."""


class BatchStatus(enum.StrEnum):
    """Status of an acknowledged batch."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"


class Acknowledgement(msgspec.Struct, frozen=True):
    """Acknowledgement of a batch."""

    status: BatchStatus
    seq: int


class _IncomingBatch(msgspec.Struct, frozen=True):
    """A batch that is being written to the log; `admitted` has its machines that are not registered."""

    key: SequenceKey
    report: SenderReport
    body: bytes
    digest: int
    weight: int
    admitted: tuple[Machine, ...]


class _CommitGroup:
    """Batches written to the log together. `coming` may grow until the caller first awaits, when the task starts."""

    def __init__(self) -> None:
        self.coming: list[_IncomingBatch] = []
        self.appended: asyncio.Task[list[int | SpoolError]] | None = None

    async def outcome(self, place: int) -> SpoolError | None:
        """Wait until a batch is durable; return the error if it could not be written, else None."""
        assert self.appended is not None, "started with the first batch"
        try:
            number = (await asyncio.shield(self.appended))[place]
        except SpoolError as error:
            return error
        return number if isinstance(number, SpoolError) else None


class _PendingBatch(msgspec.Struct, frozen=True):
    """A body whose acknowledgement waits for the log; `place` is its position in the group."""

    group: _CommitGroup
    place: int
    digest: int
    status: BatchStatus
    seq: int


def group_bodies(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield bodies in order, in groups to process together: several small bodies, or a single large one."""
    group: list[bytes] = []
    for body in bodies:
        is_large = content_bytes(body) > SMALL_BYTES
        if group and (is_large or len(group) == MAX_GROUP_BODIES):
            yield group
            group = []
        if is_large:
            yield [body]
        else:
            group.append(body)
    if group:
        yield group


class Ingest:
    """Entry point of the receive stage. Use it from the event loop.

    At most one copy of a batch is being written to the log at any time.
    """

    def __init__(
        self,
        *,
        wal: Wal,
        ledger: Ledger,
        clusters: Container[str],
        counters: Counters,
        decoding: Executor,
        conflicts: EpochConflicts,
        upstream_refusal: Callable[[WireBatch], str] = lambda _: "",
        accepted: Callable[[SenderReport], None] | None = None,
        decoded_cache: DecodedBatchCache | None = None,
        machines: MachineAdmission | None = None,
    ) -> None:
        """Connect the parts of the receive stage.

        Args:
            wal: the log.
            ledger: of the batches held.
            clusters: the served clusters.
            counters: of the hub.
            decoding: an executor with one thread, so that only one large batch is decoded at a time.
            conflicts: receives each epoch conflict.
            upstream_refusal: of a relay, returns why the next hub rejects the sender of a batch, or an empty text.
            accepted: called with each batch once it is durable.
            decoded_cache: cache of small decoded batches, for the flush stage.
            machines: admission of new machines; None on a relay, which registers none.
        """
        self._machines = machines
        self._wal = wal
        self._decoding = decoding
        self._ledger = ledger
        self._clusters = clusters
        self._counters = counters
        self._conflicts = conflicts
        self._upstream_refusal = upstream_refusal
        self._accepted = accepted
        self._coming: dict[str, set[SequenceKey]] = {}  # runs whose first batch is being written, by cluster
        self._decoded_cache = decoded_cache
        self._in_flight: dict[tuple[SequenceKey, int], _PendingBatch] = {}

    async def receive(
        self, body: bytes, came_at: int, bound_to: str | None = None, *, waited_ns: int | None = None
    ) -> Acknowledgement:
        """Make a batch durable, unless it is already held.

        Args:
            body: as received.
            came_at: time of receipt, nanoseconds since 1970.
            bound_to: the only cluster that the sender's token may post for; None if the token is not bound.
            waited_ns: time that the batch waited at relays, as reported by them; None if no relay forwarded it.

        Raises:
            WireError: if the body is not a batch; subclasses for another version or an excessive size.
            OtherClusterError: if the batch is of another cluster than `bound_to`.
            ForeignClusterError: if its cluster is not served here.
            TooManySendersError: if its cluster has reached its limit of senders or epochs.
            TooManyMachinesError: if its cluster or sender has reached its limit of machines.
            UpstreamRefusalError: if the next hub rejects batches of this sender.
            EpochConflictError: if another machine uses the same epoch; the sender must start a new one.
            SpoolError: if it cannot be made durable now; the sender must retry.
        """
        waited = None if waited_ns is None else [waited_ns]
        (taken,) = await self.receive_all([body], came_at, bound_to, waited=waited)
        if isinstance(taken, GpufleetError):
            raise taken
        return taken

    async def receive_encoded(self, batch: EncodedColumns, came_at: int) -> Acknowledgement:
        """Make a batch durable that this process created, without decoding its body. Raises as `receive`."""
        digest = digest_of(batch.body)
        checked = self._check(_CommitGroup(), batch.body, batch.wire, digest, batch.message_bytes, came_at, None, None)
        result = await self._result(checked) if isinstance(checked, _PendingBatch) else checked
        if isinstance(result, GpufleetError):
            raise result
        return result

    def reserve_machines(
        self, cluster: str, sender: str, machines: Iterable[Machine], came_at: int
    ) -> AbstractContextManager[tuple[Machine, ...]]:
        """Reserve room for the new machines of a request while the context is open; see `MachineAdmission.reserve`."""
        if self._machines is None:
            return contextlib.nullcontext(())
        return self._machines.reserve(cluster, sender, machines, came_at)

    async def receive_all(
        self,
        bodies: Sequence[bytes],
        came_at: int,
        bound_to: str | None = None,
        *,
        waited: Sequence[int] | None = None,
    ) -> list[Acknowledgement | GpufleetError]:
        """Make batches durable together; return for each body the result or the exception of `receive`.

        Small bodies are decoded without yielding to the event loop, so pass one group of `group_bodies` at a time.
        """
        group = _CommitGroup()
        checked: list[Acknowledgement | _PendingBatch | GpufleetError] = []
        for place, body in enumerate(bodies):
            weight = content_bytes(body)
            waited_ns = None if waited is None else waited[place]
            try:
                batch, digest = _decode(body) if weight <= SMALL_BYTES else await self._decode_in_thread(body)
                checked.append(self._check(group, body, batch, digest, weight, came_at, bound_to, waited_ns))
            except GpufleetError as error:
                checked.append(_without_traceback(error))
        return [await self._result(one) if isinstance(one, _PendingBatch) else one for one in checked]

    def _check(
        self,
        group: _CommitGroup,
        body: bytes,
        batch: WireBatch,
        digest: int,
        weight: int,
        came_at: int,
        bound_to: str | None,
        waited_ns: int | None,
    ) -> Acknowledgement | _PendingBatch:
        """Check a batch and add it to the group if it is new; return its acknowledgement or pending state.

        Raises the exceptions of `receive`.
        """
        if bound_to is not None and batch.cluster != bound_to:
            raise OtherClusterError(f"the token is for cluster {bound_to!r}, but the batch is of {batch.cluster!r}")
        if batch.cluster not in self._clusters:
            raise ForeignClusterError(f"cluster {batch.cluster!r} is not served here: register it")
        key = key_of(batch)
        run = self._ledger.find(key)
        if run is None:
            self._check_room(key)
        elif run.has(batch.seq, digest):
            return self._duplicate(batch.seq)
        conflict = self._ledger.epoch_conflict(key, batch)
        in_flight = self._in_flight.get((key, batch.seq))
        if in_flight is not None and in_flight.digest != digest:
            conflict = f"number {batch.seq} came with another content"
        if conflict:
            raise self._conflict(batch, conflict, came_at)
        if in_flight is not None:
            return msgspec.structs.replace(in_flight, status=BatchStatus.DUPLICATE)
        if run is not None and run.is_full(batch.seq):
            raise WireError("seq", f"{batch.seq} opens one gap too many in epoch {batch.epoch}: start a new epoch")
        if refusal := self._upstream_refusal(batch):
            raise UpstreamRefusalError(f"the next hub does not accept it yet: {refusal}")
        admitted = () if self._machines is None else self._machines.admit(batch, came_at)
        # A batch cannot wait longer than it exists: a relay whose clock was set after its start reports years.
        waited = min(waited_ns or 0, max(0, came_at - batch.sent_at))
        report = SenderReport(
            batch=batch,
            received_at=came_at - waited,
            known_epoch=run is not None,
            relayed=waited_ns is not None,
            waited_ns=waited,
        )
        pending = _PendingBatch(group, len(group.coming), digest, BatchStatus.ACCEPTED, batch.seq)
        group.coming.append(_IncomingBatch(key, report, body, digest, weight, admitted))
        self._in_flight[key, batch.seq] = pending
        if run is None:
            self._coming.setdefault(key.cluster, set()).add(key)
        if group.appended is None:
            # A separate task, so that a disconnecting client cannot cancel between the disk and the ledger.
            group.appended = asyncio.create_task(self._append(group.coming, came_at))
        return pending

    async def _result(self, pending: _PendingBatch) -> Acknowledgement | GpufleetError:
        error = await pending.group.outcome(pending.place)
        if error is not None:
            return error
        if pending.status is BatchStatus.DUPLICATE:
            return self._duplicate(pending.seq)
        self._counters.accepted += 1
        return Acknowledgement(BatchStatus.ACCEPTED, pending.seq)

    def _check_room(self, key: SequenceKey) -> None:
        coming = self._coming.get(key.cluster, set())
        if key in coming:
            return
        field, detail = self._ledger.refusal(key, len(coming))
        if field:
            raise TooManySendersError(field, detail)

    async def _decode_in_thread(self, body: bytes) -> tuple[WireBatch, int]:
        return await asyncio.get_running_loop().run_in_executor(self._decoding, _decode, body)

    async def _append(self, coming: Sequence[_IncomingBatch], came_at: int) -> list[int | SpoolError]:
        logged: set[int] = set()  # places in `coming`
        try:
            numbers = await self._wal.append_all(
                came_at, [one.body for one in coming], [one.report.waited_ns for one in coming]
            )
            for place, (one, number) in enumerate(zip(coming, numbers, strict=True)):
                if isinstance(number, int):
                    logged.add(place)
                    self._hold(one, number)
        finally:
            for place, one in enumerate(coming):
                del self._in_flight[one.key, one.report.batch.seq]
                self._coming.get(one.key.cluster, set()).discard(one.key)
                if self._machines is not None and one.admitted:
                    who = one.key.cluster, one.key.sender
                    self._machines.finish(*who, one.admitted, is_logged=place in logged)
        return numbers

    def _hold(self, one: _IncomingBatch, number: int) -> None:
        self._ledger.hold(one.key, one.report.batch, one.digest, one.report.received_at + one.report.waited_ns)
        if self._decoded_cache is not None and one.weight <= SMALL_BYTES:
            self._decoded_cache.keep(number, one.report.batch, one.digest, one.weight)
        if self._accepted is not None:
            self._accepted(one.report)

    def _conflict(self, batch: WireBatch, detail: str, at: int) -> EpochConflictError:
        self._conflicts.note(batch, detail, at)
        return EpochConflictError(f"{detail}: two machines use epoch {batch.epoch}; start a new epoch")

    def _duplicate(self, seq: int) -> Acknowledgement:
        self._counters.duplicates += 1
        return Acknowledgement(BatchStatus.DUPLICATE, seq)


def _without_traceback(error: GpufleetError) -> GpufleetError:
    """Return an error without traceback and cause, whose frames keep the body and the result list alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _decode(body: bytes) -> tuple[WireBatch, int]:
    return decode(body, as_matrix=True), digest_of(body)
