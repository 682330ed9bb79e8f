"""One flush: records of the log into the store, exactly once even over kill -9.

What is about to be written is remembered in the registry first (which records, matched to which machines, under
which token). Whoever starts after a crash repeats exactly that, and tells the store that it may have been begun: the
store looks for what is there and adds the rest. When the store has it, the sequence numbers are kept in the registry,
and only then the log forgets the records. A record that is in the log and whose number is kept already was written: it
is skipped.

Everything here blocks and runs on the writer's thread.

Which machines a batch only names: of which it has nothing but what Kubernetes says of them. Pure.
"""

import logging
import secrets
from collections.abc import Callable, Sequence

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.hub.flush.normalise import normalise
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.screening import Doubts, screen
from gpufleet.hub.liveness.senders import heard, is_news
from gpufleet.hub.receive.counters import Counters, bounded
from gpufleet.hub.receive.decoded import Unpacked
from gpufleet.hub.receive.ledger import STEP_NS, Ledger, Run, key_of
from gpufleet.hub.receive.log import WalRecord
from gpufleet.hub.receive.sequences import digest_of
from gpufleet.model.catalogue import SAID_BY_KUBERNETES
from gpufleet.model.errors import RegistryError, UnstorableError
from gpufleet.model.stored.ledger import FlushIntent, Heard, SenderState, SequenceKey
from gpufleet.model.stored.samples import Accepted
from gpufleet.model.wire.batch import WireBatch
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store


def named_only(batch: WireBatch) -> frozenset[int]:
    """Return the positions of those machines; whoever sends such a batch has not heard of them."""
    named = {place for block in batch.dims if block.metric in SAID_BY_KUBERNETES for place in block.machine}
    if not named:
        return frozenset()
    heard = {part.machine for part in batch.parts}
    heard.update(place for block in batch.samples for place in block.machine)
    heard.update(place for block in batch.dims if block.metric not in SAID_BY_KUBERNETES for place in block.machine)
    return frozenset(named - heard)


LOG = logging.getLogger(__name__)

ISOLATE_AFTER = 2
"""Failures in a row before records are written one by one, to find one that does not fit the store."""

STUCK_AFTER = 10
"""The same where the store may have written a part: that is an outage, unless it goes on for as long as this."""

GIVE_UP_AFTER = 3
"""Records in a row that fail alone before the store is taken to be down rather than the records bad."""

MAX_CELLS = 2_000_000
"""Cells that one group may unpack to, unless its first record alone has more: bodies compress a thousandfold."""


class _Read(msgspec.Struct, frozen=True):
    """One record, unpacked."""

    record: WalRecord
    digest: int
    key: SequenceKey
    batch: WireBatch


class Item(msgspec.Struct, frozen=True):
    """One record, ready to be written, with so many `rows` of samples."""

    record: WalRecord
    digest: int
    key: SequenceKey
    accepted: Accepted
    rows: int


class Writer:
    """Writes groups of records. `flush` either returns what the log may forget, or raises and is called again."""

    def __init__(
        self,
        *,
        wal: str,
        store: Store,
        registry: Registry,
        quarantine: Quarantine,
        counters: Counters,
        now: Callable[[], int],
        unpacked: Unpacked | None = None,
        max_cells: int = MAX_CELLS,
        written: Callable[[Sequence[Accepted]], None] = lambda _: None,
    ) -> None:
        """Take what it writes to, and the hub's clock, `now` (nanoseconds since 1970).

        `unpacked` has some of the batches that it will be given records of. `written` is told of batches once they are
        in the store, before that is remembered: of those that a crash came between it is told again.
        """
        self._wal = wal
        # A log or registry restored from an older copy counts again from where it was, and the store remembers.
        self._run = secrets.token_hex(8)
        self._max_cells = max_cells
        self._unpacked = unpacked or Unpacked()
        self._written = written
        self._now = now
        self._store = store
        self._registry = registry
        self._quarantine = quarantine
        self._counters = counters
        self._flushed = Ledger(registry.sequences())
        self._senders = {(one.cluster, one.sender): one.heard for one in registry.senders()}
        self._intent = registry.pending_flush(wal)
        self._tried = max(self._intent.records) if self._intent else 0  # no record after it was given to the store yet
        self._failures = 0
        self._matched: dict[SequenceKey, int] = {}

    @property
    def repeats(self) -> range | None:
        """Numbers of the records that the next `flush` must be given, or None when any will do."""
        if self._intent is None:
            return None
        return range(min(self._intent.records), max(self._intent.records) + 1)

    @property
    def wants_company(self) -> bool:
        """Whether it needs records beside those it repeats: whose fault it is shows in the others."""
        return self._intent is not None and self._failures >= STUCK_AFTER

    def flush(self, records: Sequence[WalRecord]) -> list[int]:
        """Write the records, or as many of the first as may be unpacked at once; return those that are done with.

        Raises:
            StoreError, RegistryError: if it should be tried again with the same records.
        """
        if self._intent is not None and not self.wants_company:
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

    def _prepare(self, records: Sequence[WalRecord], intent: FlushIntent | None) -> tuple[list[Item], list[int]]:
        batches, done = self._read(records, intent)
        items: list[Item] = []
        for read, doubts in zip(batches, _screen(batches), strict=True):
            try:
                repeated = intent.records.get(read.record.seq) if intent else None
                ids = repeated or self._match(read)
                items.append(self._item(read, ids, doubts))
            except RegistryError:
                raise  # the registry's trouble, not this record's
            except Exception as error:  # noqa: BLE001 - one bad record costs itself and never its neighbours
                self._put_aside(read.record, "normalise", error)
                done.append(read.record.seq)
        return items, done

    def _read(self, records: Sequence[WalRecord], intent: FlushIntent | None) -> tuple[list[_Read], list[int]]:
        """Return the batches of the records, as many of the first as may be unpacked at once, and what is done with."""
        batches: list[_Read] = []
        done: list[int] = []
        seen: set[tuple[SequenceKey, int]] = set()
        cells = 0
        for record in records:
            if cells > self._max_cells and (intent is None or record.seq not in intent.records):
                break
            try:
                batch, digest = self._unpacked.take(record.seq) or _unpack(record.body)
            except Exception as error:  # noqa: BLE001 - one bad record costs itself and never its neighbours
                self._put_aside(record, "normalise", error)
                done.append(record.seq)
                continue
            key = key_of(batch)
            if self._flushed.holds(key, batch.seq) or (key, batch.seq) in seen:
                done.append(record.seq)  # the log kept it twice, or it was written just before a crash
                continue
            batches.append(_Read(record, digest, key, batch))
            cells += _cells(batch)
            seen.add((key, batch.seq))
        return batches, done

    def _spoken_at(self, record: WalRecord, key: SequenceKey, batch: WireBatch) -> int:
        """Return when it was received, or for a batch that comes after later ones of its run, when it was sent.

        What is said of a target that does not answer is of when it last did.
        """
        if key not in self._matched:
            self._matched[key] = max((end for _, end in self._flushed.ranges(key)), default=0)
        highest = self._matched[key]
        self._matched[key] = max(highest, batch.seq)
        at = record.received_at if batch.seq > highest else min(record.received_at, batch.sent_at)
        answered = batch.heartbeat.answered_at if batch.heartbeat is not None else None
        return at if answered is None else min(at, max(1, answered))

    def _match(self, read: _Read) -> tuple[str, ...]:
        batch, now = read.batch, max(read.record.came_at, self._now())  # it may have waited in the log
        at, named = self._spoken_at(read.record, read.key, batch), named_only(batch)
        ids = []
        for place, machine in enumerate(batch.machines):
            if place in named:
                match = self._registry.name(batch.cluster, batch.sender, machine, at, now)
            else:
                match = self._registry.match(batch.cluster, batch.sender, machine, at, now)
            ids.append(match.id)
        return tuple(ids)

    def _item(self, read: _Read, ids: tuple[str, ...], doubts: Sequence[Doubts] | None) -> Item:
        record = read.record
        normalised = normalise(read.batch, record.came_at, doubts)
        if self._failures == 0:  # counted once however often it is tried
            for name, count in normalised.unknown_metrics.items():
                bounded(self._counters.unknown_metrics, name, count)
            for name, count in normalised.invalid_values.items():
                bounded(self._counters.invalid_values, name, count)
            self._counters.future_rows += normalised.future_rows
            self._counters.repeated_rows += normalised.repeated_rows
        clean = normalised.batch
        rows = sum(len(block.machine) for block in clean.samples) + sum(len(block.machine) for block in clean.dims)
        accepted = Accepted(received_at=record.received_at, reported_at=0, machine_ids=ids, batch=clean)
        return Item(record, read.digest, read.key, accepted, rows)

    def _remember(self, items: Sequence[Item]) -> FlushIntent:
        """Make durable what is about to be written."""
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

    def _repeat(self, items: Sequence[Item], intent: FlushIntent) -> list[int]:
        """Write what was begun; if that has failed for too long, go on to its records and their company one by one."""
        try:
            return self._write_group([item for item in items if item.record.seq in intent.records], intent)
        except RegistryError:
            raise
        except Exception:  # a store fails in any way: it is raised, unless it has for so long that others must tell
            if self._intent is None or not self.wants_company or len(items) == 1:
                raise
        try:
            return self._isolate(items)
        except RegistryError:
            raise
        except Exception:  # however it failed, what was begun stands again before it is raised
            self._registry.begin_flush(intent)
            self._intent = intent
            raise

    def _write_group(self, items: Sequence[Item], intent: FlushIntent) -> list[int]:
        try:
            self._write(items, intent)
        except RegistryError:
            raise  # the same intent again: the store may have it already
        except UnstorableError:
            self._failures += 1
            self._intent = None  # take what came since along: whose fault it is shows beside others
            raise
        except Exception:  # a store fails in any way: it is counted and raised
            self._failures += 1  # the same intent again: the store may have a part of it
            raise
        return [item.record.seq for item in items]

    def _write(self, items: Sequence[Item], intent: FlushIntent) -> None:
        self._give(items, intent.token, intent, has_rest=False)

    def _write_alone(self, item: Item, whole: FlushIntent) -> None:
        self._give([item], self._token(item.record.seq, item.record.seq), whole, has_rest=True)

    def _give(self, items: Sequence[Item], token: str, intent: FlushIntent, *, has_rest: bool) -> None:
        runs: dict[SequenceKey, Run] = {}
        words: dict[tuple[str, str], Heard] = {}
        ordered = [self._in_order(item, runs, words) for item in items]
        begun = items[0].record.seq <= self._tried
        self._tried = max(self._tried, items[-1].record.seq)
        self._store.write(ordered, token, begun=begun)
        self._written(ordered)
        self._registry.finish_flush(
            intent,
            {key: run.held for key, run in runs.items()},
            [SenderState(cluster=who[0], sender=who[1], heard=word) for who, word in words.items()],
            has_rest=has_rest,
        )
        for key, run in runs.items():
            self._flushed.replace(key, run)
        self._senders.update(words)
        self._counters.flushed_batches += len(items)
        self._counters.flushed_rows += sum(item.rows for item in items)

    def _in_order(self, item: Item, runs: dict[SequenceKey, Run], words: dict[tuple[str, str], Heard]) -> Accepted:
        """Give a batch its place in the order of its sender's reports; `runs` and `words` learn of it."""
        batch, received_at = item.accepted.batch, item.record.received_at
        run = runs.get(item.key)
        if run is None:
            run = runs[item.key] = self._flushed.run(item.key)
        who = (batch.cluster, batch.sender)
        before = words.get(who) or self._senders.get(who)
        is_new = is_news(before, batch, known_epoch=len(run.numbers) > 0)
        least = max(received_at, before.reported_at + STEP_NS) if before else received_at
        reported_at = run.order.place(batch.seq, least if is_new else None)
        if is_new:
            words[who] = heard(before, batch, received_at=received_at, reported_at=reported_at)
        run.hold(batch, item.digest, item.record.came_at)
        told = item.accepted
        return Accepted(
            received_at=received_at, reported_at=reported_at, machine_ids=told.machine_ids, batch=told.batch
        )

    def _isolate(self, items: Sequence[Item]) -> list[int]:
        """Write one by one. A record is bad when it fails, another one succeeds, and it fails again.

        What was begun stays the whole group until the last is done: whoever starts after a crash repeats the rest.

        Raises:
            the store's error, if nothing can be written: then it is the store and not the records.
        """
        whole = self._remember(items)
        start = self._failures * GIVE_UP_AFTER % len(items)  # elsewhere each time: the first few may all be bad
        suspects: list[Item] = []
        finished: list[int] = []
        failure: Exception | None = None
        for item in (*items[start:], *items[:start]):
            try:
                self._write_alone(item, whole)
                finished.append(item.record.seq)
            except RegistryError:
                raise
            except Exception as error:  # noqa: BLE001 - judged below: whose fault it is shows in the others
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

    def _second_chance(self, item: Item, whole: FlushIntent) -> list[int]:
        try:
            self._write_alone(item, whole)
        except RegistryError:
            raise
        except Exception as error:  # noqa: BLE001 - it failed twice while others did not: it is put aside
            self._put_aside(item.record, "write", error)
        return [item.record.seq]

    def _put_aside(self, record: WalRecord, step: str, error: Exception) -> None:
        name = f"{self._wal}-{record.seq}"
        words = f"{type(error).__name__}: {error}"
        kept = self._quarantine.put(name, record.body, received_at=record.received_at, step=step, error=words)
        self._counters.quarantined[step] += 1
        LOG.error("batch %s could not be used at step %s%s: %s", name, step, "" if kept else " and is lost", words)


def _unpack(body: bytes) -> tuple[WireBatch, int]:
    return decode(body, as_matrix=True), digest_of(body)


def _screen(batches: Sequence[_Read]) -> Sequence[Sequence[Doubts] | None]:
    try:
        return screen(read.batch for read in batches)
    except Exception:  # one of them is not what it was taken for: whose fault it is shows one by one
        LOG.exception("%d batches cannot be looked at together", len(batches))
        return [None] * len(batches)


def _cells(batch: WireBatch) -> int:
    """Return about how many cells a batch has; records beside the samples count for sixteen."""
    records = len(batch.machines) + len(batch.views)
    cells = 0
    for absences in batch.absences:
        records += len(absences)
    for part in batch.parts:
        records += len(part.events) + len(part.readers) + len(part.holdings) + len(part.inventory or ())
        for told in part.processes:
            cells += len(told.pids) * (len(told.columns) + 5) + 8
    for block in batch.samples:
        cells += len(block.machine) * (len(block.columns) + 5)
    for dim in batch.dims:
        cells += len(dim.machine) * (len(dim.labels) + 6)
    return cells + 16 * records
