"""Taking what is written by remote write: as batches of a sender of the hub's own, on the same way as everyone's."""

import asyncio
import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

from gpufleet.codecs.batch import encode
from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.limits import WriteLimits
from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.hub.counters import Counters, bounded
from gpufleet.hub.imported.rows import Rows
from gpufleet.hub.imported.series import READER, Written, read_request
from gpufleet.hub.ingest import ForeignClusterError, Ingest
from gpufleet.model.batch import Batch, MachineReport
from gpufleet.model.errors import WireLimitError
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.ports import Clock, Registry, Store

T = TypeVar("T")

SAMPLES_A_BATCH = 2000
"""Rows of one batch; a request that catches up on an outage has many instants of many machines."""

WRITERS_KEPT = 64
"""Writers of all clusters together; each keeps its newest rows in memory."""

ROWS_KEPT_SECONDS = 900
"""A subject that nobody wrote of for so long is forgotten."""


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
        limits: WriteLimits | None = None,
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
        self._limits = limits or WriteLimits()
        self._writers: dict[tuple[str, str], _Writer] = {}

    async def take(self, body: bytes, version: int, cluster: str, writer: str) -> int:
        """Make what a request says durable, and return how many of its samples were read.

        Args:
            body: as it came.
            version: 1 or 2, of remote write.
            cluster: whose it is, by whom it authenticated.
            writer: name of the writer within the cluster.

        Raises:
            WireError: if the body is none; WireLimitError if it passes a bound, or there are too many writers.
            ForeignClusterError: if its cluster is not served here.
            NotYetError: if it is too early after the start; it must be sent again.
            SpoolError: if it cannot be made durable now; it must be sent again.
            StoreError, RegistryError: if they do not answer; it must be sent again.
        """
        if cluster not in self._clusters:
            raise ForeignClusterError(f"cluster {cluster!r} is not served here: register it")
        if not self._is_caught_up():
            raise NotYetError("what was acknowledged before the start is not in the store yet: send it again")
        known = self._writers.get((cluster, writer))
        if known is None:
            if len(self._writers) >= WRITERS_KEPT:
                raise WireLimitError("sender", f"there are {WRITERS_KEPT} writers already: name fewer")
            known = self._writers[cluster, writer] = _Writer(cluster, writer, self._limits)
        # A task of its own: a client that goes away must not leave memory and disk in disagreement.
        return await asyncio.shield(asyncio.create_task(self._take(known, body, version)))

    async def _take(self, writer: "_Writer", body: bytes, version: int) -> int:
        async with writer.lock:
            request, written = await self._ask(lambda: _read(writer.decoder, body, version))
            self._count(request, written)
            await self._ask(lambda: self._remember(writer, written.machines))
            rows = await self._ask(
                lambda: {name: writer.rows.joined(name, parts) for name, parts in written.machines.items()}
            )
            for reports in _batches(rows):
                now = self._clock.now_ns()
                content = await self._ask(lambda reports=reports, now=now: encode(writer.batch(reports, now)))  # type: ignore[misc]
                await self._ingest.take(content, now)
                writer.seq += 1
                for report in reports:
                    writer.rows.keep(report.machine.name, report.samples)
            writer.rows.forget_before(self._clock.now_ns() - ROWS_KEPT_SECONDS * NANOS)
        return len(request.values) - written.others - written.nameless

    def _remember(self, writer: "_Writer", machines: Mapping[str, Sequence[Sample]]) -> None:
        """Learn the newest rows of machines that were not written of since the start: blocking."""
        new = [name for name in machines if name not in writer.asked]
        if not new:
            return
        ids = {one.id: name for name in new for one in self._registry.machines_called(writer.cluster, name)}
        if ids:
            for id_, stored in self._store.latest_of(writer.cluster, list(ids)).items():
                written = [one.sample for one in stored if one.sample.reader.startswith(READER)]
                writer.rows.keep(ids[id_], written)
        writer.asked.update(new)

    def _count(self, request: WriteRequest, written: Written) -> None:
        self._counters.written_samples += len(request.values)
        self._counters.written_others += written.others
        self._counters.written_nameless += written.nameless
        for problem, count in request.problems.items():
            self._counters.written_problems[problem] += count
        for name, count in written.drift.items():
            bounded(self._counters.unknown_metrics, name, count)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)


class _Writer:
    """One writer: what was seen of it since the start."""

    def __init__(self, cluster: str, name: str, limits: WriteLimits) -> None:
        self.cluster, self.name = cluster, name
        self.lock = asyncio.Lock()
        self.decoder = WriteDecoder(limits)
        self.rows = Rows()
        self.asked: set[str] = set()
        self.epoch, self.seq = secrets.token_hex(16), 0

    def batch(self, reports: Sequence[MachineReport], now: int) -> Batch:
        return Batch(
            cluster=self.cluster,
            sender=f"{READER}/{self.name}",
            epoch=self.epoch,
            seq=self.seq + 1,
            sent_at=now,
            reports=tuple(reports),
        )


def _read(decoder: WriteDecoder, body: bytes, version: int) -> tuple[WriteRequest, Written]:
    request = decoder.decode_2(body) if version == 2 else decoder.decode_1(body)
    return request, read_request(request)


def _batches(rows: Mapping[str, Sequence[Sample]]) -> list[list[MachineReport]]:
    """Cut rows into batches of a bounded size."""
    batches: list[list[MachineReport]] = []
    room = 0
    for name, samples in rows.items():
        left = iter(samples)
        while True:
            if room == 0:
                batches.append([])
                room = SAMPLES_A_BATCH
            part = tuple(islice(left, room))
            if not part:
                break
            batches[-1].append(MachineReport(machine=Machine(name=name), samples=part))
            room -= len(part)
    return [reports for reports in batches if reports]
