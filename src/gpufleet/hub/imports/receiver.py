"""Receiver of imports: turns requests of other systems into batches that take the normal ingestion path."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

from gpufleet.codecs.batch import encode_with_columns
from gpufleet.dialects.sample_builder import is_end_of_series
from gpufleet.fleet.attribution.reported import current_holdings
from gpufleet.hub.flush.names import Span, times_of_name
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.row_cache import RowCache, subject_of
from gpufleet.hub.imports.writers import ImportWriter, ImportWriters
from gpufleet.hub.receive.counters import Counters, count_bounded
from gpufleet.hub.receive.ingest import ForeignClusterError, Ingest
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.holdings import HoldingQuery
from gpufleet.model.time import LATEST
from gpufleet.model.wire.batch import MachineReport
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import MachineRegistry
from gpufleet.ports.store import SampleStore

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BATCH_SAMPLES = 2000
"""Maximum number of rows in one batch. A request after an outage has many instants of many machines."""

TOO_MANY_MACHINES = "too_many_machines"
"""Problem of samples of new machines beyond `ingest.max_machines`."""

MAX_NAMES_LOGGED = 5

MAX_CONCURRENT = 2
"""Requests decoded and merged concurrently. A decoded request takes up to 100 times the memory of its body."""


class BacklogPendingError(Exception):
    """The backlog of earlier processes is not in the store yet, so new rows cannot be merged with it."""


class ImportReceiver:
    """Ingests requests of other systems. Use it from the event loop; each writer's requests are processed in order."""

    def __init__(
        self,
        *,
        ingest: Ingest,
        clusters: Container[str],
        registry: MachineRegistry,
        store: SampleStore,
        counters: Counters,
        clock: Clock,
        threads: Executor,
        is_caught_up: Callable[[], bool],
        writers: ImportWriters | None = None,
    ) -> None:
        """Connect the receiver; `is_caught_up` returns whether the log's backlog at the start has been flushed."""
        self._ingest = ingest
        self._clusters = clusters
        self._registry = registry
        self._store = store
        self._counters = counters
        self._clock = clock
        self._threads = threads
        self._is_caught_up = is_caught_up
        self._writers = writers or ImportWriters(clock)
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)

    async def receive(
        self,
        cluster: str,
        name: str,
        read: Callable[[ImportWriter], ImportedRequest],
        *,
        merge_window_ns: int = 0,
        heartbeat: Heartbeat | None = None,
    ) -> ImportedRequest:
        """Make the content of a request durable and return it.

        Args:
            cluster: of the writer, from its authentication.
            name: of the writer as a sender.
            read: decodes the request, on a thread.
            merge_window_ns: instants of one subject that are at most this far apart are merged.
            heartbeat: sent with the batches, and alone if there is nothing new.

        Raises:
            WireError: from `read`; WireLimitError if there are too many writers or subjects.
            ForeignClusterError: if the cluster is not served here.
            TooManyMachinesError: if all machines are new and exceed a limit. Some of them are only dropped.
            BacklogPendingError: too early after the start; the client must retry.
            SpoolError: if it cannot be made durable now; the client must retry.
            StoreError, RegistryError: if they are unavailable; the client must retry.
        """
        if cluster not in self._clusters:
            raise ForeignClusterError(f"cluster {cluster!r} is not served here: register it")
        if not self._is_caught_up():
            raise BacklogPendingError("the backlog from before the start is not in the store yet: retry later")
        writer = self._writers.of(cluster, name, merge_window_ns)
        # A separate task, so that a disconnecting client cannot cancel between the disk and memory.
        return await asyncio.shield(asyncio.create_task(self._take(writer, read, heartbeat)))

    async def _take(
        self, writer: ImportWriter, read: Callable[[ImportWriter], ImportedRequest], heartbeat: Heartbeat | None
    ) -> ImportedRequest:
        async with writer.lock, self._turns:
            request = await self._in_thread(lambda: read(writer))
            with self._admitted(writer, request) as written:
                await self._ingest_request(writer, written, heartbeat)
        return written

    async def _ingest_request(
        self, writer: ImportWriter, written: ImportedRequest, heartbeat: Heartbeat | None
    ) -> None:
        if missed := writer.decoder.known.missed:
            count_bounded(self._counters.uncached_series, f"{writer.cluster}/{writer.name}", missed)
        self._writers.bound_series()
        writer.expire(self._clock)
        self._writers.expire(writer.cluster)
        self._writers.check_subjects(writer, await self._in_thread(lambda: writer.rows.count_new(written.machines)))
        self._count(written)
        written = await self._in_thread(lambda: self._of_bearers(writer, written))
        rows = await self._in_thread(
            lambda: {one: writer.rows.merge(one, parts) for one, parts in written.machines.items()}
        )
        instant = self._clock.now_ns()
        states = await self._in_thread(
            lambda: {one: writer.states.changes(one, own, instant) for one, own in rows.items()}
        )
        events = [MachineReport(machine=one, events=found) for one, found in written.events.items()]
        derived = _event_batches({one: found.events for one, found in states.items()})
        changed = {one: writer.holders.changes(one, found, instant) for one, found in written.holders.items()}
        held = [MachineReport(machine=one, holdings=changes) for one, (changes, _) in changed.items() if changes]
        # Events precede their rows: after a failure between them, the repeated request shows the same events again.
        batches = [*derived, *_batches(rows), *([events] if events else []), *([held] if held else [])]
        for reports in batches or ([[]] if heartbeat is not None else []):
            now = self._clock.now_ns()
            batch = writer.batch(reports, now, heartbeat)
            encoded = await self._in_thread(functools.partial(encode_with_columns, batch))
            await self._ingest.receive_encoded(encoded, now)
            writer.seq += 1
            for report in reports:
                writer.rows.keep(report.machine, report.samples, writer.last_seen)
        for found in states.values():
            writer.states.keep(found)
        for _, kept in changed.values():
            writer.holders.keep(kept)

    @contextlib.contextmanager
    def _admitted(self, writer: ImportWriter, written: ImportedRequest) -> Iterator[ImportedRequest]:
        """Reserve room for the machines of a request; yield the request without new machines beyond the limit.

        Raises TooManyMachinesError if no machine is left.
        """
        machines = {**written.machines, **written.events, **written.holders}
        if not machines:
            yield written
            return
        with self._ingest.reserve_machines(writer.cluster, writer.name, machines, self._clock.now_ns()) as excess:
            self._report_excess(writer, excess)
            yield written.without(set(excess), TOO_MANY_MACHINES)

    def _report_excess(self, writer: ImportWriter, excess: Sequence[Machine]) -> None:
        """Log machines without room, unless the writer's previous request had as many."""
        if excess and len(excess) != writer.excess:
            names = ", ".join(repr(one.name) for one in excess[:MAX_NAMES_LOGGED])
            log.warning(
                "sender %r of cluster %r: %d new machines exceed ingest.max_machines and are dropped, such as %s: "
                "check their host names, and retire machines that are gone",
                writer.name, writer.cluster, len(excess), names,
            )  # fmt: skip
        writer.excess = len(excess)

    def _of_bearers(self, writer: ImportWriter, written: ImportedRequest) -> ImportedRequest:
        """Return a request without what was measured while another machine had the name. Blocking.

        The batch would not be stored with it either, but states and holders would be those of the present bearer. The
        end of the series of a name that no reporting machine has is that of a former bearer, and registers no machine.
        """
        now = self._clock.now_ns()
        bearers = {one: self._registry.bearer(writer.cluster, one, now) for one in written.machines}
        self._load_stored(writer, bearers, now)
        named: dict[Machine, list[Span]] = {}
        for one, record in bearers.items():
            if (record is None or record.named_only) and _is_end_of_others(one, written.machines[one], writer.rows):
                named[one] = []
                continue
            names = () if record is None else self._registry.past_names(record.id, 0, LATEST)
            if (times := times_of_name(names, one.name)) is not None:
                named[one] = times
        if not named:
            return written
        written, others = written.within(named)
        self._counters.other_name_rows += others
        return written

    def _load_stored(self, writer: ImportWriter, records: Mapping[Machine, MachineRecord | None], now: int) -> None:
        """Load the newest stored rows and present holders of machines that are new since the start. Blocking.

        What is known under a name is dropped when another machine has it: GPUs can be known by their place only. A name
        that no machine had is that of the machine that this writer registered since.

        Args:
            writer: of the request.
            records: machine of the request to the machine that has its name, None if there is none yet.
            now: time by the hub's clock.
        """
        bearers = {one: None if record is None else record.id for one, record in records.items()}
        for one, had in [(one, writer.loaded[one]) for one in records if one in writer.loaded]:
            record = records[one]
            is_registered = had is None and record is not None and record.sender == writer.name
            if bearers[one] != had and not is_registered:
                writer.drop(one)
        ids = {id_: one for one, id_ in bearers.items() if id_ is not None and one not in writer.loaded}
        if ids:
            for id_, stored in self._store.latest_of(writer.cluster, list(ids)).items():
                written = [one.sample for one in stored if one.sample.provenance is Provenance.IMPORTED]
                writer.rows.keep(ids[id_], written, writer.last_seen)
                writer.states.keep(writer.states.changes(ids[id_], written, now))
            query = HoldingQuery(cluster=writer.cluster, machines=tuple(ids), start=now, end=LATEST)
            for holding in self._store.holdings(query):
                writer.holders.remember(ids[holding.machine], current_holdings([holding], now), now)
        writer.loaded |= bearers

    def _count(self, written: ImportedRequest) -> None:
        self._counters.imported_samples += written.samples
        self._counters.unrecognised_samples += sum(written.others.values())
        self._counters.unattributed_samples += written.unattributed
        for problem, count in written.problems.items():
            self._counters.import_problems[problem] += count
        for name, count in written.drift.items():
            count_bounded(self._counters.unknown_metrics, name, count)
        for name, count in written.labels.items():
            count_bounded(self._counters.unknown_labels, name, count)
        for name, count in written.others.items():
            count_bounded(self._counters.unrecognised_metrics, name, count)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _is_end_of_others(machine: Machine, samples: Iterable[Sample], rows: RowCache) -> bool:
    """Return whether samples only report the end of series that the present bearer of a name did not have."""
    return all(is_end_of_series(one) and subject_of(machine, one) not in rows for one in samples)


def _event_batches(events: Mapping[Machine, Sequence[Event]]) -> list[list[MachineReport]]:
    """Split events into batches of a bounded size."""
    pairs = ((machine, event) for machine, own in events.items() for event in own)
    batches = []
    while part := list(islice(pairs, MAX_BATCH_SAMPLES)):
        together: dict[Machine, list[Event]] = {}
        for machine, event in part:
            together.setdefault(machine, []).append(event)
        batches.append([MachineReport(machine=one, events=tuple(own)) for one, own in together.items()])
    return batches


def _batches(rows: Mapping[Machine, Sequence[Sample]]) -> list[list[MachineReport]]:
    """Split rows into batches of a bounded size."""
    batches: list[list[MachineReport]] = []
    room = 0
    for machine, samples in rows.items():
        left = iter(samples)
        while True:
            if room == 0:
                batches.append([])
                room = MAX_BATCH_SAMPLES
            part = tuple(islice(left, room))
            if not part:
                break
            batches[-1].append(MachineReport(machine=machine, samples=part))
            room -= len(part)
    return [reports for reports in batches if reports]
