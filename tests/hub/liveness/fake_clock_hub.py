"""A hub without HTTP on a fake clock, with a real log, ledger, writer and registry, and a store in memory."""

import asyncio
import contextlib
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from gpufleet.codecs.batch import encode
from gpufleet.hub.contract.verdicts import ContractVerdicts
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.writer import FlushedState, StoreWriter
from gpufleet.hub.liveness.senders import SenderReport, Senders
from gpufleet.hub.liveness.uptime import HistoryFile, IngestClock
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.records import CoverageCounter
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ingest import EpochConflictError, Ingest
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.sequences import EpochConflicts
from gpufleet.model.absence import Absent
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.machine import NVIDIA_VENDOR, Machine, PciFunction
from gpufleet.model.reading import Sample, Value
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.ledger import SenderState
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.registry.database import Database
from gpufleet.registry.machines import MAX_MACHINES_PER_CLUSTER
from gpufleet.registry.sql import SqlRegistry
from gpufleet.wiring.contract import load_contract
from gpufleet.wiring.hub_parts import replay
from tests.fakes.batches import gpu_sample, gpu_view
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore
from tests.support.findings import EvaluatorStub, MemoryFindings

STEP = 2.5
INTERVAL = 30.0
STATIC_EVERY = 20


class Node:
    """An agent: its sequence numbers, its clock and its backlog."""

    def __init__(self, name: str, cluster: str = "local", *, gpus: int = 2, first_gpu: int = 0) -> None:
        self.name, self.cluster, self.gpus, self.first_gpu = name, cluster, gpus, first_gpu
        self.epoch = uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{cluster}").hex
        self.seq = 0
        self.ahead = 0.0  # seconds that its clock is ahead
        self.oldest_unsent: float | None = None
        self.queued = 99  # reported only if `oldest_unsent` is set
        self.answered_at: int | None = None  # for a scrape target
        self.sends_heartbeat = True
        self.sends_samples = True
        self.sends_inventory = False  # and static readings
        self.gpu_state: str | None = None
        self.machine = Machine(name=name, machine_id=f"{name:x<32}"[:32], boot_id=f"boot-{name}")

    def now(self, clock: FakeClock) -> int:
        return clock.now_ns() + int(self.ahead * 1e9)

    def body(self, clock: FakeClock, *, at: int | None = None, seq: int | None = None) -> bytes:
        """Return the next batch, or the batch with number `seq`."""
        if seq is None:
            self.seq += 1
            seq = self.seq
        at = at if at is not None else self.now(clock)
        unsent = None if self.oldest_unsent is None else int(self.oldest_unsent * 1e9)
        beat = Heartbeat(
            interval_seconds=INTERVAL,
            version="1",
            started_at=1,
            oldest_unsent=unsent,
            queue_records=0 if unsent is None else self.queued,
            answered_at=self.answered_at,
        )
        samples = tuple(gpu_sample(gpu_view(number), at, **self._values()) for number in self._gpu_numbers())
        if self.sends_inventory and seq % STATIC_EVERY == 1:
            static: dict[str, Value | Absent] = {"gpu_pcie_link_width_max": 16}
            samples += tuple(msgspec.structs.replace(one, lane=Lane.STATIC, values=static) for one in samples)
        return encode(
            Batch(
                cluster=self.cluster,
                sender=self.name,
                epoch=self.epoch,
                seq=seq,
                sent_at=at,
                heartbeat=beat if self.sends_heartbeat else None,
                reports=(self._report(samples),) if self.sends_samples else (),
            )
        )

    def _report(self, samples: tuple[Sample, ...]) -> MachineReport:
        if not self.sends_inventory:
            return MachineReport(machine=self.machine, samples=samples)
        gpus = tuple(
            PciFunction(address=f"0000:{number:02x}:00.0", vendor=NVIDIA_VENDOR, device=1, class_code=0x030200)
            for number in self._gpu_numbers()
        )
        return MachineReport(machine=self.machine, samples=samples, inventory=gpus)

    def _gpu_numbers(self) -> range:
        return range(self.first_gpu, self.first_gpu + self.gpus)

    def _values(self) -> dict[str, Value | Absent]:
        values: dict[str, Value | Absent] = {} if self.gpu_state == "lost" else {"gpu_power_watts": 100.0}
        return values if self.gpu_state is None else {**values, "gpu_state": self.gpu_state}


class FakeClockHub:
    """The hub. Its store accepts batches while `flushes` is set."""

    log_bytes, max_machines = 1 << 26, MAX_MACHINES_PER_CLUSTER

    def __init__(self, folder: Path, *clusters: str) -> None:
        self.folder, self.configured = folder, clusters or ("local",)
        self.clock, self.store, self.flushes = FakeClock(), MemoryStore(), True
        self.threads = ThreadPoolExecutor(1)
        self.live_findings, self.registered = EvaluatorStub(), MemoryFindings()
        self.open()

    def open(self) -> None:
        """Start the hub with the state of its predecessor."""
        self.wal = Wal.open(self.folder / "wal", max_bytes=self.log_bytes, max_body_bytes=1 << 20)
        database = Database.open(f"sqlite:///{self.folder / 'registry.sqlite'}")
        self.registry = SqlRegistry(database, max_machines=self.max_machines)
        self.registry.migrate()
        self.registry.load()
        self.registry.register_clusters(self.configured, self.clock.now_ns())
        self.counters = Counters()
        self.history_file = HistoryFile(self.folder / "alive.json")
        self.ledger, self.conflicts = Ledger(self.registry.sequences()), EpochConflicts()
        states: dict[tuple[str, str], SenderState] = {(one.cluster, one.sender): one for one in self.registry.senders()}
        replay(self.wal, self.ledger, states)
        self.ingest_clock = IngestClock(self.clock, self.history_file.load())
        self.senders = Senders(self.ingest_clock, states.values())
        self._observe_clocks()
        self.contract = ContractVerdicts(load_contract(), self.registered)
        clusters = Clusters(self.configured, registry=self.registry, threads=self.threads, clock=self.clock)
        self.ingest = Ingest(
            wal=self.wal,
            ledger=self.ledger,
            clusters=clusters,
            counters=self.counters,
            decoding=self.threads,
            conflicts=self.conflicts,
            accepted=self.note_report,
        )
        self.writer = StoreWriter(
            wal=self.wal.epoch,
            store=self.store,
            registry=self.registry,
            flushed=FlushedState.load(self.registry),
            quarantine=Quarantine(self.folder / "quarantine"),
            counters=self.counters,
            now=self.clock.now_ns,
            written=self.note_written,
        )
        self.overview = Overview(
            senders=self.senders,
            ingest_clock=self.ingest_clock,
            ledger=self.ledger,
            conflicts=self.conflicts,
            clusters=clusters,
            covering=CoverageCounter(
                registry=self.registry, store=self.store, clock=self.clock, stale_after_seconds=120
            ),
            store=self.store,
            registry=self.registry,
            threads=self.threads,
            clock=self.clock,
            flush_lag_seconds=self._lag,
            unflushed_since=lambda: self.wal.oldest_received_at,
            findings=self.live_findings,
            contract=self.contract,
        )

    def note_report(self, report: SenderReport) -> None:
        """Record an accepted batch, as the hub does."""
        self.senders.note(report)

    def note_written(self, batches: Sequence[AcceptedBatch]) -> None:
        """Record batches that are in the store, as the hub does."""

    def close(self) -> None:
        self.wal.close()
        self.registry.close()

    def end(self) -> None:
        """Close the hub and its threads."""
        self.close()
        self.threads.shutdown()

    def _observe_clocks(self) -> None:
        """Observe the clocks, as `watch` does."""
        self.history_file.save(self.ingest_clock.past)

    def _lag(self) -> float:
        oldest = self.wal.oldest_received_at
        return 0.0 if oldest is None else (self.clock.now_ns() - oldest) / 1e9

    async def take(self, *bodies: bytes, relayed: bool = False, waited: float = 0.0) -> None:
        """Ingest batches. A relay reports how long each batch waited there."""
        for body in bodies:
            with contextlib.suppress(EpochConflictError):
                await self.ingest.receive(body, self.clock.now_ns(), waited_ns=int(waited * 1e9) if relayed else None)
        if self.flushes:
            await self.flush()

    async def flush(self) -> None:
        """Write the log to the store."""
        await asyncio.to_thread(self._flush)

    def _flush(self) -> None:
        while records := self.wal.read(0, max_records=10_000, max_bytes=1 << 26):
            self.wal.acknowledge(self.writer.flush(records))

    async def advance(self, seconds: float, nodes: Iterable[Node] = (), *, relayed: bool = False) -> None:
        """Advance the clock; each of `nodes` sends a batch every `INTERVAL`."""
        nodes, since = list(nodes), 0.0
        passed = 0.0
        while passed < seconds:
            step = min(STEP, seconds - passed)
            self.clock.advance(step)
            passed, since = passed + step, since + step
            self._observe_clocks()
            if since >= INTERVAL:
                since = 0.0
                await self.take(*(one.body(self.clock) for one in nodes), relayed=relayed)

    def restart_after(self, seconds: float) -> None:
        """Kill the hub and start it again after `seconds`."""
        self.close()
        self.clock.advance(seconds)
        self.open()

    async def cluster(self, name: str = "local") -> ClusterRecord:
        return await self.overview.cluster(name)

    async def sender(self, node: Node) -> SenderRecord:
        page = await self.overview.senders(PageRequest())
        (found,) = [one for one in page.items if (one.cluster, one.sender) == (node.cluster, node.name)]
        return found
