"""Taking what other systems write: as batches of senders of the hub's own, on the same way as everyone's."""

import asyncio
import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

from gpufleet.codecs.batch import encode
from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.hub.counters import Counters, bounded
from gpufleet.hub.imported.holders import Holders
from gpufleet.hub.imported.rows import Rows
from gpufleet.hub.imported.series import is_wanted
from gpufleet.hub.imported.written import Written
from gpufleet.hub.ingest import ForeignClusterError, Ingest
from gpufleet.model.batch import Batch, MachineReport
from gpufleet.model.errors import WireLimitError
from gpufleet.model.machine import Machine
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import Sample
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.ports import Clock, Registry, Store

T = TypeVar("T")

SAMPLES_A_BATCH = 2000
"""Rows of one batch; a request that catches up on an outage has many instants of many machines."""

WRITERS_KEPT = 64
"""Writers of one cluster; each keeps its newest rows in memory. What one cluster names leaves room for the others."""

SERIES_KEPT = 1_000_000
"""Series that all writers together are remembered by: about 3 GB. Beyond it who wrote last keeps its own."""

ROWS_KEPT_SECONDS = 900
"""A subject that nobody wrote of for so long is forgotten; and so is a silent writer, once another one needs room."""

HOLDERS_KEPT_SECONDS = 86_400
"""A view that nobody wrote of for so long has nobody known to hold it when somebody does."""


class NotYetError(Exception):
    """What earlier processes acknowledged is not in the store yet: what is written now could not be joined with it."""


class Writer:
    """One writer: what was seen of it since the start.

    Attributes:
        cluster, name: whose it is, and its name as a sender.
        lock: its requests are taken one after the other.
        decoder: of its requests, where those are of remote write.
        rows: its newest.
        holders: who holds what, as it said last.
        asked: machines whose newest rows the store was asked for.
        epoch, seq: of the newest batch.
        heard: when it wrote last, seconds of the monotonic clock.
    """

    def __init__(self, cluster: str, name: str, together_ns: int) -> None:
        self.cluster, self.name = cluster, name
        self.lock = asyncio.Lock()
        self.decoder = WriteDecoder(is_wanted=is_wanted)
        self.rows = Rows(together_ns)
        self.holders = Holders()
        self.asked: set[Machine] = set()
        self.epoch, self.seq = secrets.token_hex(16), 0
        self.heard = 0.0

    def batch(self, reports: Sequence[MachineReport], now: int, beat: Heartbeat | None = None) -> Batch:
        """Return the next batch."""
        return Batch(
            cluster=self.cluster,
            sender=self.name,
            epoch=self.epoch,
            seq=self.seq + 1,
            sent_at=now,
            heartbeat=beat,
            reports=tuple(reports),
        )


class Writes:
    """Takes requests. Lives on the event loop; requests of one writer are taken one after the other."""

    def __init__(
        self,
        *,
        ingest: Ingest,
        clusters: Container[str],
        registry: Registry,
        store: Store,
        counters: Counters,
        clock: Clock,
        threads: Executor,
        is_caught_up: Callable[[], bool],
        series_kept: int = SERIES_KEPT,
    ) -> None:
        """Take what is behind it; `is_caught_up` tells whether the store has all that was in the log at the start."""
        self._ingest = ingest
        self._clusters = clusters
        self._registry = registry
        self._store = store
        self._counters = counters
        self._clock = clock
        self._threads = threads
        self._is_caught_up = is_caught_up
        self._series_kept = series_kept
        self._writers: dict[tuple[str, str], Writer] = {}

    async def take(
        self,
        cluster: str,
        name: str,
        read: Callable[[Writer], Written],
        *,
        together_ns: int = 0,
        beat: Heartbeat | None = None,
    ) -> Written:
        """Make what a request says durable, and return it.

        Args:
            cluster: whose it is, by whom it authenticated.
            name: of its writer as a sender.
            read: reads the request, on a thread.
            together_ns: instants of one subject that are no further apart are one.
            beat: what is said of the writer beside it, even where there is nothing new.

        Raises:
            WireError: what `read` raises; WireLimitError if there are too many writers.
            ForeignClusterError: if its cluster is not served here.
            NotYetError: if it is too early after the start; it must be sent again.
            SpoolError: if it cannot be made durable now; it must be sent again.
            StoreError, RegistryError: if they do not answer; it must be sent again.
        """
        if cluster not in self._clusters:
            raise ForeignClusterError(f"cluster {cluster!r} is not served here: register it")
        if not self._is_caught_up():
            raise NotYetError("what was acknowledged before the start is not in the store yet: send it again")
        known = self._writers.get((cluster, name))
        if known is None:
            self._make_room(cluster)
            known = self._writers[cluster, name] = Writer(cluster, name, together_ns)
        known.heard = self._clock.monotonic()
        # A task of its own: a client that goes away must not leave memory and disk in disagreement.
        return await asyncio.shield(asyncio.create_task(self._take(known, read, beat)))

    def _make_room(self, cluster: str) -> None:
        """Forget the writer that is silent for longest where there are too many. Raises WireLimitError if none is."""
        mine = [key for key in self._writers if key[0] == cluster]
        if len(mine) < WRITERS_KEPT:
            return
        longest = min(mine, key=lambda key: self._writers[key].heard)
        writer = self._writers[longest]
        if writer.lock.locked() or self._clock.monotonic() - writer.heard < ROWS_KEPT_SECONDS:
            raise WireLimitError("sender", f"cluster {cluster!r} has {WRITERS_KEPT} writers already: name fewer")
        del self._writers[longest]

    async def _take(self, writer: Writer, read: Callable[[Writer], Written], beat: Heartbeat | None) -> Written:
        async with writer.lock:
            written = await self._ask(lambda: read(writer))
            self._bound_series()
            self._count(written)
            await self._ask(lambda: self._remember(writer, written.machines))
            rows = await self._ask(
                lambda: {one: writer.rows.joined(one, parts) for one, parts in written.machines.items()}
            )
            events = [MachineReport(machine=one, events=told) for one, told in written.events.items()]
            changed = {one: writer.holders.changes(one, found) for one, found in written.holders.items()}
            held = [MachineReport(machine=one, holdings=told) for one, (told, _) in changed.items() if told]
            batches = [*_batches(rows), *([events] if events else []), *([held] if held else [])]
            for reports in batches or ([[]] if beat is not None else []):
                now = self._clock.now_ns()
                content = await self._ask(lambda reports=reports, now=now: encode(writer.batch(reports, now, beat)))  # type: ignore[misc]
                await self._ingest.take(content, now)
                writer.seq += 1
                for report in reports:
                    writer.rows.keep(report.machine, report.samples)
            for _, kept in changed.values():
                writer.holders.keep(kept)
            writer.rows.forget_before(self._clock.now_ns() - ROWS_KEPT_SECONDS * NANOS)
            writer.holders.forget_before(self._clock.now_ns() - HOLDERS_KEPT_SECONDS * NANOS)
        return written

    def _bound_series(self) -> None:
        """Have writers that are silent for longest read their series anew where all together have too many."""
        kept = sum(one.decoder.kept for one in self._writers.values())
        if kept <= self._series_kept:
            return
        for one in sorted(self._writers.values(), key=lambda one: one.heard):
            if kept > self._series_kept and not one.lock.locked():  # else a thread may be reading with it
                kept -= one.decoder.kept
                one.decoder.forget()

    def _remember(self, writer: Writer, machines: Mapping[Machine, Sequence[Sample]]) -> None:
        """Learn the newest rows and holders of machines that were not written of since the start: blocking."""
        new = [one for one in machines if one not in writer.asked]
        ids = {known.id: one for one in new for known in self._registry.machines_called(writer.cluster, one.name)}
        if ids:
            for id_, stored in self._store.latest_of(writer.cluster, list(ids)).items():
                written = [one.sample for one in stored if one.sample.provenance is Provenance.IMPORTED]
                writer.rows.keep(ids[id_], written)
            for id_, holdings in self._store.holdings_of(writer.cluster, list(ids)).items():
                writer.holders.remember(ids[id_], holdings)
        writer.asked.update(new)

    def _count(self, written: Written) -> None:
        self._counters.written_samples += written.samples
        self._counters.written_others += sum(written.others.values())
        self._counters.written_nameless += written.nameless
        for problem, count in written.problems.items():
            self._counters.written_problems[problem] += count
        for name, count in written.drift.items():
            bounded(self._counters.unknown_metrics, name, count)
        for name, count in written.others.items():
            bounded(self._counters.other_metrics, name, count)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)


def _batches(rows: Mapping[Machine, Sequence[Sample]]) -> list[list[MachineReport]]:
    """Cut rows into batches of a bounded size."""
    batches: list[list[MachineReport]] = []
    room = 0
    for machine, samples in rows.items():
        left = iter(samples)
        while True:
            if room == 0:
                batches.append([])
                room = SAMPLES_A_BATCH
            part = tuple(islice(left, room))
            if not part:
                break
            batches[-1].append(MachineReport(machine=machine, samples=part))
            room -= len(part)
    return [reports for reports in batches if reports]
