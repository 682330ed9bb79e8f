"""Flush of log records to the store, exactly once even across `kill -9`.

1. The intent (records, matched machines, token) is saved in the registry.
2. The records are written to the store. After a crash, the next process repeats the intent as a retry: the store checks
   which rows exist and adds the rest.
3. The sequence numbers are saved in the registry.
4. The records are acknowledged in the log. A record whose number is already saved was written, and is skipped.

Everything here blocks and runs on the writer's thread.
"""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.codecs.batch.size import cluster_part_cells
from gpufleet.fleet.identity import has_name_only
from gpufleet.hub.flush.names import Span, ended_machines, times_of_name, without_other_names
from gpufleet.hub.flush.normalise import normalise
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.screening import SuspectColumns, screen
from gpufleet.hub.liveness.senders import is_newer, next_report
from gpufleet.hub.receive.counters import Counters, count_bounded
from gpufleet.hub.receive.decode_cache import DecodedBatchCache
from gpufleet.hub.receive.ledger import STEP_NS, SequenceRun, key_of
from gpufleet.hub.receive.log import WalRecord
from gpufleet.hub.receive.sequences import digest_of, is_within
from gpufleet.model.catalogue import KUBERNETES_REPORTED
from gpufleet.model.errors import RegistryError, UnstorableError
from gpufleet.model.machine import MachineKind
from gpufleet.model.stored.ledger import FlushIntent, NewestReport, Ranges, SenderState, SequenceKey, SequenceState
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import LATEST
from gpufleet.model.wire.batch import WireBatch
from gpufleet.ports.registry import LedgerRegistry
from gpufleet.ports.store import SampleWriter


def named_only_machines(batch: WireBatch) -> frozenset[int]:
    """Return the positions of machines for which a batch has only metrics reported by Kubernetes.

    The sender of such a batch knows these machines from Kubernetes only. An import has their name; a cluster collector
    has the evidence of the Node object too, which is matched as that of any report. Neither is a report of the machine.
    """
    named = {place for block in batch.dims if block.metric in KUBERNETES_REPORTED for place in block.machine}
    if not named:
        return frozenset()
    observed = {part.machine for part in batch.parts}
    observed.update(place for block in batch.samples for place in block.machine)
    observed.update(place for block in batch.dims if block.metric not in KUBERNETES_REPORTED for place in block.machine)
    return frozenset(named - observed)


LOG = logging.getLogger(__name__)

ISOLATE_AFTER = 2
"""Consecutive failures before records are written one by one, to find one that cannot be stored."""

STUCK_AFTER = 10
"""Like `ISOLATE_AFTER`, if the store may have written a part. This is usually an outage, so the limit is higher."""

GIVE_UP_AFTER = 3
"""Consecutive single records that fail before the store is considered down, instead of the records bad."""

MAX_CELLS = 2_000_000
"""Bound on the decoded cells of one group, because bodies can compress a thousandfold.

The first record is included even if it alone exceeds the bound.
"""


class _DecodedRecord(msgspec.Struct, frozen=True):
    """A log record with its decoded batch."""

    record: WalRecord
    digest: int
    key: SequenceKey
    batch: WireBatch


class FlushItem(msgspec.Struct, frozen=True):
    """A record ready to be written; `rows` is its number of sample and dimensioned rows."""

    record: WalRecord
    digest: int
    key: SequenceKey
    accepted: AcceptedBatch
    rows: int


class FlushedState(msgspec.Struct, frozen=True):
    """Flushed part of each sender: sequence numbers and the newest report."""

    sequences: Mapping[SequenceKey, SequenceState]
    senders: Sequence[SenderState]

    @classmethod
    def load(cls, registry: LedgerRegistry) -> Self:
        """Load the state from a registry."""
        return cls(registry.sequences(), registry.senders())


class StoreWriter:
    """Writer of groups of records. `flush` returns the finished records, or raises and must be called again."""

    def __init__(
        self,
        *,
        wal: str,
        store: SampleWriter,
        registry: LedgerRegistry,
        flushed: FlushedState,
        quarantine: Quarantine,
        counters: Counters,
        now: Callable[[], int],
        decoded_cache: DecodedBatchCache | None = None,
        max_cells: int = MAX_CELLS,
        written: Callable[[Sequence[AcceptedBatch]], None] = lambda _: None,
    ) -> None:
        """Continue from the state that the registry has.

        Args:
            wal: epoch of the log.
            store, registry, quarantine: destinations.
            flushed: of the registry.
            counters: of the hub.
            now: the hub's clock, nanoseconds since 1970.
            decoded_cache: cache of decoded batches.
            max_cells: see `MAX_CELLS`.
            written: called with batches once they are in the store and before that is saved in the registry. After a
                crash in between, it is called again with the same batches.
        """
        self._wal = wal
        # Random, because a log or registry restored from an older copy repeats its numbers, which the store has seen.
        self._run = secrets.token_hex(8)
        self._max_cells = max_cells
        self._decoded_cache = decoded_cache or DecodedBatchCache()
        self._written = written
        self._now = now
        self._store = store
        self._registry = registry
        self._quarantine = quarantine
        self._counters = counters
        self._flushed = dict(flushed.sequences)
        self._senders = {(one.cluster, one.sender): one.newest_report for one in flushed.senders}
        self._intent = registry.pending_flush(wal)
        self._tried = max(self._intent.records) if self._intent else 0  # highest record ever passed to the store
        self._failures = 0
        self._highest: dict[tuple[str, str], int] = {}  # matched number of an epoch; a renamed agent continues it
        for key, state in self._flushed.items():
            self._count_matched(key, max((end for _, end in state.ranges), default=0))

    @property
    def repeats(self) -> range | None:
        """Numbers of the records that the next `flush` must repeat, or None if any records will do."""
        if self._intent is None:
            return None
        return range(min(self._intent.records), max(self._intent.records) + 1)

    @property
    def needs_more_records(self) -> bool:
        """Whether `flush` needs records besides those it repeats, to distinguish bad records from a failing store."""
        return self._intent is not None and self._failures >= STUCK_AFTER

    def flush(self, records: Sequence[WalRecord]) -> list[int]:
        """Write the records, or as many as `max_cells` allows; return the numbers of the finished ones.

        Raises:
            StoreError, RegistryError: the caller must retry with the same records.
        """
        if self._intent is not None and not self.needs_more_records:
            records = [record for record in records if record.seq in self._intent.records]
        items, done = self._prepare(records, self._intent)
        if not items:
            self._intent = None
            return done
        if self._intent is not None:
            finished = self._repeat(items, self._intent)
        elif self._failures >= ISOLATE_AFTER and len(items) > 1:
            finished = self._isolate(items)
        else:
            finished = self._write_group(items, self._remember(items))
        self._intent = None
        self._failures = 0
        return [*done, *finished]

    def _prepare(self, records: Sequence[WalRecord], intent: FlushIntent | None) -> tuple[list[FlushItem], list[int]]:
        batches, done = self._read(records, intent)
        items: list[FlushItem] = []
        for read, suspects in zip(batches, _screen(batches), strict=True):
            try:
                repeated = intent.records.get(read.record.seq) if intent else None
                ids = repeated or self._match(read)
                items.append(self._item(read, ids, suspects))
            except RegistryError:
                raise  # the registry failed, not this record
            except Exception as error:  # noqa: BLE001 - a bad record must not affect its neighbours
                self._quarantine_record(read.record, "normalise", error)
                done.append(read.record.seq)
        return items, done

    def _read(self, records: Sequence[WalRecord], intent: FlushIntent | None) -> tuple[list[_DecodedRecord], list[int]]:
        """Decode records within `max_cells`; return them, and the numbers of skipped and quarantined ones."""
        batches: list[_DecodedRecord] = []
        done: list[int] = []
        seen: set[tuple[SequenceKey, int]] = set()
        cells = 0
        for record in records:
            if cells > self._max_cells and (intent is None or record.seq not in intent.records):
                break
            try:
                batch, digest = self._decoded_cache.take(record.seq) or _decode(record.body)
            except Exception as error:  # noqa: BLE001 - a bad record must not affect its neighbours
                self._quarantine_record(record, "normalise", error)
                done.append(record.seq)
                continue
            key = key_of(batch)
            if is_within(self._ranges(key), batch.seq) or (key, batch.seq) in seen:
                done.append(record.seq)  # twice in the log, or written just before a crash
                continue
            batches.append(_DecodedRecord(record, digest, key, batch))
            cells += _cells(batch)
            seen.add((key, batch.seq))
        return batches, done

    def _count_matched(self, key: SequenceKey, seq: int) -> int:
        """Count the number of a batch, and return the highest of its epoch, under any name of the sender."""
        epoch = key.cluster, key.epoch
        highest = self._highest[epoch] = max(seq, self._highest.get(epoch, 0))
        return highest

    def _observed_at(self, record: WalRecord, batch: WireBatch, *, overtaken: bool) -> int:
        """Return the time for which a batch describes its machines.

        This is the time of receipt, or the earlier send time of an overtaken batch. For a target that does not respond,
        it is at most the time of its last response.
        """
        at = min(record.received_at, batch.sent_at) if overtaken else record.received_at
        answered = batch.heartbeat.answered_at if batch.heartbeat is not None else None
        return at if answered is None else min(at, max(1, answered))

    def _match(self, read: _DecodedRecord) -> tuple[str, ...]:
        batch, now = read.batch, max(read.record.came_at, self._now())  # the log may have a backlog
        overtaken = batch.seq < self._count_matched(read.key, batch.seq)
        at, named = self._observed_at(read.record, batch, overtaken=overtaken), named_only_machines(batch)
        ended = ended_machines(batch) if any(map(has_name_only, batch.machines)) else set()
        ids: dict[int, str] = {}
        nodes: dict[str, str] = {}
        # Nodes first: the hypervisor of a guest is the node of this batch, whatever its name is now.
        for place, machine in sorted(enumerate(batch.machines), key=lambda one: one[1].kind is MachineKind.GUEST):
            if place in named:
                match = self._registry.match_named(batch.cluster, batch.sender, machine, at, now)
            else:
                host = nodes.get(machine.hypervisor or "", "")
                match = self._registry.match(
                    batch.cluster,
                    batch.sender,
                    machine,
                    at,
                    now,
                    batch.sent_at,
                    host,
                    overtaken=overtaken,
                    has_ended=place in ended,
                )
            ids[place] = match.id
            if machine.kind is MachineKind.NODE:
                nodes[machine.name] = match.id
        return tuple([ids[place] for place in range(len(ids))])

    def _named(self, batch: WireBatch, ids: Sequence[str]) -> dict[int, list[Span]]:
        """Return the position of machines that are known by name only to the times in which they had the name.

        A machine that always had the name is left out.
        """
        found: dict[int, list[Span]] = {}
        for place, (machine, id_) in enumerate(zip(batch.machines, ids, strict=True)):
            names = self._registry.past_names(id_, 0, LATEST) if has_name_only(machine) else ()
            if (times := times_of_name(names, machine.name)) is not None:
                found[place] = times
        return found

    def _item(self, read: _DecodedRecord, ids: tuple[str, ...], suspects: Sequence[SuspectColumns] | None) -> FlushItem:
        record, batch, others = read.record, read.batch, 0
        if named := self._named(batch, ids):
            batch, others = without_other_names(batch, named)
        normalised = normalise(batch, record.came_at, suspects)
        if self._failures == 0:  # count once, not on each retry
            for name, count in normalised.unknown_metrics.items():
                count_bounded(self._counters.unknown_metrics, name, count)
            for name, count in normalised.invalid_values.items():
                count_bounded(self._counters.invalid_values, name, count)
            self._counters.future_rows += normalised.future_rows
            self._counters.repeated_rows += normalised.repeated_rows
            self._counters.other_name_rows += others
            self._counters.dropped_objects += normalised.dropped_objects
        clean = normalised.batch
        rows = sum(len(block.machine) for block in clean.samples) + sum(len(block.machine) for block in clean.dims)
        accepted = AcceptedBatch(received_at=record.received_at, reported_at=0, machine_ids=ids, batch=clean)
        return FlushItem(record, read.digest, read.key, accepted, rows)

    def _remember(self, items: Sequence[FlushItem]) -> FlushIntent:
        """Save the intent to write these items in the registry."""
        first, last = items[0].record.seq, items[-1].record.seq
        intent = FlushIntent(
            wal=self._wal,
            token=self._token(first, last),
            records={item.record.seq: item.accepted.machine_ids for item in items},
        )
        self._registry.begin_flush(intent)
        self._intent = intent
        return intent

    def _token(self, first: int, last: int) -> str:
        return f"{self._wal}-{self._run}-{first}-{last}"

    def _repeat(self, items: Sequence[FlushItem], intent: FlushIntent) -> list[int]:
        """Repeat an interrupted flush; if that has failed for too long, write all given records one by one."""
        try:
            return self._write_group([item for item in items if item.record.seq in intent.records], intent)
        except RegistryError:
            raise
        except Exception:  # broad: a store may raise anything; re-raised unless it is time to isolate
            if self._intent is None or not self.needs_more_records or len(items) == 1:
                raise
        try:
            return self._isolate(items)
        except RegistryError:
            raise
        except Exception:  # broad: restore the intent after any failure
            self._registry.begin_flush(intent)
            self._intent = intent
            raise

    def _write_group(self, items: Sequence[FlushItem], intent: FlushIntent) -> list[int]:
        try:
            self._write(items, intent)
        except RegistryError:
            raise  # keep the intent: the store may already have the records
        except UnstorableError:
            self._failures += 1
            self._intent = None  # the next group includes newer records, to show whether these records are bad
            raise
        except Exception:  # broad: a store may raise anything
            self._failures += 1  # keep the intent: the store may have a part of the records
            raise
        return [item.record.seq for item in items]

    def _write(self, items: Sequence[FlushItem], intent: FlushIntent) -> None:
        self._write_items(items, intent.token, intent, has_rest=False)

    def _write_alone(self, item: FlushItem, whole: FlushIntent) -> None:
        self._write_items([item], self._token(item.record.seq, item.record.seq), whole, has_rest=True)

    def _write_items(self, items: Sequence[FlushItem], token: str, intent: FlushIntent, *, has_rest: bool) -> None:
        runs: dict[SequenceKey, SequenceRun] = {}
        reports: dict[tuple[str, str], NewestReport] = {}
        ordered = [self._place_in_order(item, runs, reports) for item in items]
        is_retry = items[0].record.seq <= self._tried
        self._tried = max(self._tried, items[-1].record.seq)
        self._store.write(ordered, token, is_retry=is_retry)
        self._written(ordered)
        sequences = {key: run.held for key, run in runs.items()}
        self._registry.finish_flush(
            intent,
            sequences,
            [SenderState(cluster=who[0], sender=who[1], newest_report=newest) for who, newest in reports.items()],
            has_rest=has_rest,
        )
        self._flushed.update(sequences)
        self._senders.update(reports)
        self._counters.flushed_batches += len(items)
        self._counters.flushed_rows += sum(item.rows for item in items)

    def _ranges(self, key: SequenceKey) -> Ranges:
        """Return the flushed numbers of a run."""
        state = self._flushed.get(key)
        return () if state is None else state.ranges

    def _place_in_order(
        self, item: FlushItem, runs: dict[SequenceKey, SequenceRun], reports: dict[tuple[str, str], NewestReport]
    ) -> AcceptedBatch:
        """Return a batch with its place in the order of its sender's reports; update `runs` and `reports`."""
        batch, received_at = item.accepted.batch, item.record.received_at
        run = runs.get(item.key)
        if run is None:
            run = runs[item.key] = SequenceRun(self._flushed.get(item.key))
        who = (batch.cluster, batch.sender)
        before = reports.get(who) or self._senders.get(who)
        is_new = is_newer(before, batch, known_epoch=len(run.numbers) > 0)
        least = max(received_at, before.reported_at + STEP_NS) if before else received_at
        reported_at = run.order.place(batch.seq, least if is_new else None)
        if is_new:
            reports[who] = next_report(before, batch, received_at=received_at, reported_at=reported_at)
        run.hold(batch, item.digest, item.record.came_at)
        machine_ids = item.accepted.machine_ids
        return AcceptedBatch(received_at=received_at, reported_at=reported_at, machine_ids=machine_ids, batch=batch)

    def _isolate(self, items: Sequence[FlushItem]) -> list[int]:
        """Write records one by one. A record is bad if it fails, another record succeeds, and it fails again.

        The intent covers the whole group until the last record is written, so after a crash the rest is repeated.

        Raises:
            Exception: the store's error, if no record can be written: then the store is failing, not the records.
        """
        whole = self._remember(items)
        start = self._failures * GIVE_UP_AFTER % len(items)  # rotate, because the first few may all be bad
        suspects: list[FlushItem] = []
        finished: list[int] = []
        failure: Exception | None = None
        for item in (*items[start:], *items[:start]):
            try:
                self._write_alone(item, whole)
                finished.append(item.record.seq)
            except RegistryError:
                raise
            except Exception as error:  # noqa: BLE001 - judged below by the results of the other records
                failure = error
                suspects.append(item)
                if not finished and len(suspects) >= GIVE_UP_AFTER:
                    break
        if failure is not None and not finished:
            self._failures += 1
            self._intent = None
            raise failure
        for item in suspects:
            finished += self._second_chance(item, whole)
        self._registry.finish_flush(whole, {}, [])
        return finished

    def _second_chance(self, item: FlushItem, whole: FlushIntent) -> list[int]:
        try:
            self._write_alone(item, whole)
        except RegistryError:
            raise
        except Exception as error:  # noqa: BLE001 - it failed twice while others succeeded: quarantine it
            self._quarantine_record(item.record, "write", error)
        return [item.record.seq]

    def _quarantine_record(self, record: WalRecord, step: str, error: Exception) -> None:
        name = f"{self._wal}-{record.seq}"
        detail = f"{type(error).__name__}: {error}"
        kept = self._quarantine.put(name, record.body, received_at=record.received_at, step=step, error=detail)
        self._counters.quarantined[step] += 1
        result = "quarantined" if kept else "lost, because the quarantine is full"
        LOG.error("batch %s failed at step %s and is %s: %s", name, step, result, detail)


def _decode(body: bytes) -> tuple[WireBatch, int]:
    return decode(body, as_matrix=True), digest_of(body)


def _screen(batches: Sequence[_DecodedRecord]) -> Sequence[Sequence[SuspectColumns] | None]:
    try:
        return screen(read.batch for read in batches)
    except Exception:  # broad: a malformed batch; `normalise` then screens each batch alone and finds it
        LOG.exception("%d batches cannot be screened together", len(batches))
        return [None] * len(batches)


def _cells(batch: WireBatch) -> int:
    """Return the approximate number of cells of a batch.

    A record besides the samples counts as sixteen. A cluster part counts by its size.
    """
    records = len(batch.machines) + len(batch.views)
    cells = 0
    for absences in batch.absences:
        records += len(absences)
    for part in batch.parts:
        records += len(part.events) + len(part.readers) + len(part.holdings) + len(part.inventory or ())
        records += len(part.device_holders or ()) + len(part.unresolved)
        for listing in part.processes:
            cells += len(listing.pids) * (len(listing.columns) + 5) + 8
    if (cluster := batch.cluster_part) is not None:
        cells += cluster_part_cells(cluster)
    for block in batch.samples:
        cells += len(block.machine) * (len(block.columns) + 5)
    for dim in batch.dims:
        cells += len(dim.machine) * (len(dim.labels) + 6)
    return cells + 16 * records
