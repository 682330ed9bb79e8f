"""Taking what other systems write: as batches of senders of the hub's own, on the same way as everyone's."""

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

from gpufleet.codecs.batch import encode
from gpufleet.hub.imports.request import Written
from gpufleet.hub.imports.writers import Writer, Writers
from gpufleet.hub.receive.counters import Counters, bounded
from gpufleet.hub.receive.ingest import ForeignClusterError, Ingest
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.status import Heartbeat
from gpufleet.model.wire.batch import MachineReport
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

T = TypeVar("T")

SAMPLES_A_BATCH = 2000
"""Rows of one batch; a request that catches up on an outage has many instants of many machines."""

AT_ONCE = 2
"""Requests that are read and joined at once: what one comes to takes up to a hundred times the memory of its body."""


class NotYetError(Exception):
    """What earlier processes acknowledged is not in the store yet: what is written now could not be joined with it."""


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
        writers: Writers | None = None,
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
        self._writers = writers or Writers(clock)
        self._turns = asyncio.Semaphore(AT_ONCE)

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
            WireError: what `read` raises; WireLimitError if there are too many writers, or they tell of too much.
            ForeignClusterError: if its cluster is not served here.
            NotYetError: if it is too early after the start; it must be sent again.
            SpoolError: if it cannot be made durable now; it must be sent again.
            StoreError, RegistryError: if they do not answer; it must be sent again.
        """
        if cluster not in self._clusters:
            raise ForeignClusterError(f"cluster {cluster!r} is not served here: register it")
        if not self._is_caught_up():
            raise NotYetError("what was acknowledged before the start is not in the store yet: send it again")
        writer = self._writers.of(cluster, name, together_ns)
        # A task of its own: a client that goes away must not leave memory and disk in disagreement.
        return await asyncio.shield(asyncio.create_task(self._take(writer, read, beat)))

    async def _take(self, writer: Writer, read: Callable[[Writer], Written], beat: Heartbeat | None) -> Written:
        async with writer.lock, self._turns:
            written = await self._ask(lambda: read(writer))
            if missed := writer.decoder.known.missed:
                bounded(self._counters.unremembered_series, f"{writer.cluster}/{writer.name}", missed)
            self._writers.bound_series()
            writer.tidy(self._clock)
            self._writers.tidy(writer.cluster)
            self._writers.check_subjects(writer, await self._ask(lambda: writer.rows.lacks(written.machines)))
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
                    writer.rows.keep(report.machine, report.samples, writer.heard)
            for _, kept in changed.values():
                writer.holders.keep(kept)
        return written

    def _remember(self, writer: Writer, machines: Mapping[Machine, Sequence[Sample]]) -> None:
        """Learn the newest rows and holders of machines that were not written of since the start: blocking."""
        new = [one for one in machines if one not in writer.asked]
        ids = {known.id: one for one in new for known in self._registry.machines_called(writer.cluster, one.name)}
        if ids:
            for id_, stored in self._store.latest_of(writer.cluster, list(ids)).items():
                written = [one.sample for one in stored if one.sample.provenance is Provenance.IMPORTED]
                writer.rows.keep(ids[id_], written, writer.heard)
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
        for name, count in written.labels.items():
            bounded(self._counters.unknown_labels, name, count)
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
