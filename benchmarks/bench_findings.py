"""Evaluation of the rules on a hub: processor time from the facts in store, registry and memory to durable findings.

Method: embedded store and SQLite registry in a temporary folder. Nodes with 8 GPUs, a pod on each, in `CLUSTERS`
clusters; every node reports once before each evaluation. One GPU in a thousand is lost, others each time. The first
evaluation, which fills memory, is not counted. Allocations are not included.
"""

import resource
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.table import Table
from gpufleet.codecs.batch import decode, encode
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.fleet.rules.judgement import judge
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.findings.allocations import AllocationTurns
from gpufleet.hub.findings.boots import AgentBoots
from gpufleet.hub.findings.durable import DurableFindings
from gpufleet.hub.findings.gatherer import FactGatherer
from gpufleet.hub.findings.instant import HubInstant
from gpufleet.hub.findings.late import LateReports
from gpufleet.hub.findings.scan import MachineScan
from gpufleet.hub.liveness.senders import SenderReport, Senders
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.hub.query.records import CoverageCounter
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.model.holdings import DeviceState, Holder, HolderKind, HolderState, Holding, HoldingVerdict
from gpufleet.model.reading import Sample
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.registry.database import Database
from gpufleet.registry.findings import SqlFindings
from gpufleet.registry.sql import SqlRegistry
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes import fleet
from tests.fakes.clock import FakeClock

CLUSTERS, ROUNDS, LOST_SHARE = 50, 3, 0.001
STALE_AFTER_SECONDS = 120
BATCHES_PER_WRITE = 1000


class RealMonotonic(FakeClock):
    """Fake wall clock with the machine's monotonic clock, which bounds reads in turns."""

    def monotonic(self) -> float:
        """Return seconds of the machine's monotonic clock."""
        return time.monotonic()


class Hub:
    """Store, registry and memory of a hub."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self.nodes = gpus // fleet.GPUS
        self.clock = FakeClock(time.time_ns())
        self.ingest_clock = IngestClock(self.clock)
        self.ingested_seconds = self.ingest_clock.seconds
        self.senders, self.boots = Senders(self.ingest_clock), AgentBoots()
        self.store = ClickHouseStore.open(f"chdb://{folder}/store")
        self.store.migrate(hub="hub")
        database = Database.open(f"sqlite:///{folder}/registry.sqlite")
        self.registry = SqlRegistry(database, max_machines=self.nodes)
        self.registry.migrate()
        self.registry.load()
        self.clusters = [f"cluster-{number}" for number in range(CLUSTERS)]
        self.registry.register_clusters(self.clusters, 1)
        self.findings = DurableFindings(SqlFindings(database), RULES, Thresholds(RULES))
        self.gatherer = FactGatherer(
            registry=self.registry,
            store=self.store,
            coverage=CoverageCounter(
                registry=self.registry, store=self.store, clock=self.clock, stale_after_seconds=STALE_AFTER_SECONDS
            ),
            senders=self.senders,
            boots=self.boots,
            late=LateReports(SqlFindings(database), ()),
            scan=MachineScan(self.store, RealMonotonic(self.clock.now_ns())),
            allocations=AllocationTurns(no_answer, Claims(()), self.clock),
            clock=self.clock,
            stale_after_seconds=STALE_AFTER_SECONDS,
        )

    def advance(self, seconds: float) -> None:
        """Advance the clock, and update the ingest clock."""
        self.clock.advance(seconds)
        self.ingested_seconds = self.ingest_clock.seconds

    def report(self, step: int) -> None:
        """Accept and store a report of every node."""
        for first in range(0, self.nodes, BATCHES_PER_WRITE):
            nodes = range(first, min(first + BATCHES_PER_WRITE, self.nodes))
            self.store.write(list(self._accept(nodes, step)), f"{step}-{first}")

    def _accept(self, nodes: range, step: int) -> Iterator[AcceptedBatch]:
        now = self.clock.now_ns()
        for node in nodes:
            sent = batch_of(node, step, now, self.clusters[node % CLUSTERS])
            batch = decode(encode(sent), as_matrix=True)
            report = SenderReport(batch=batch, received_at=now, known_epoch=step > 0)
            self.senders.note(report)
            self.boots.note(report)
            machine = self.registry.match(batch.cluster, batch.sender, sent.reports[0].machine, now).id
            yield AcceptedBatch(received_at=now, reported_at=now, machine_ids=(machine,), batch=batch)

    def instant(self) -> HubInstant:
        """Return the state of the hub."""
        return HubInstant(
            liveness=LivenessSnapshot(self.senders, now=self.clock.now_ns(), unflushed_since=None),
            served=frozenset(self.clusters),
            missing={},
            conflicts={},
            counts={},
            is_ingesting=True,
            down_seconds=None,
            flush_lag_seconds=0,
            disk_free_ratio=0.5,
            log_used_ratio=0,
            unknown_names=frozenset(),
            registry_error="",
            store_error="",
        )

    def evaluate(self) -> list[float]:
        """Evaluate once; return seconds of processor time of facts, verdicts and findings, and of all by the clock."""
        began, instant = time.perf_counter(), self.instant()
        times = [time.process_time()]
        gathered = self.gatherer.gather(instant, lambda: False)
        times.append(time.process_time())
        judgement = judge(gathered.facts, RULES, Thresholds(RULES), instant.liveness.now)
        times.append(time.process_time())
        self.findings.update(judgement)
        times.append(time.process_time())
        assert not gathered.failures, gathered.failures
        return [*np.diff(times).tolist(), time.perf_counter() - began]

    def close(self) -> None:
        """Close the files."""
        self.store.close()
        self.registry.close()


def no_answer(allocation: Allocation) -> AllocationAnswer:
    """Fail: the hub has no allocations."""
    raise AssertionError(allocation.id)


def batch_of(node: int, step: int, now: int, cluster: str) -> Batch:
    """Return the batch of a node whose GPUs have pods; some GPUs are lost."""
    batch = fleet.batch(node, step, start_ns=now - step * fleet.STEP_NS)
    (report,) = batch.reports
    samples = tuple(lose(one, f"{node} {step}") if one.view else one for one in report.samples)
    views = [f"gpu/{one.view.uuid}" for one in samples if one.view]
    holder = Holder(kind=HolderKind.POD, id=f"pod-{node}", name=f"pod-{node}", namespace="ml")
    report = MachineReport(
        machine=report.machine,
        samples=samples,
        holdings=tuple(
            Holding(view=view, holder=holder, since=now, methods=("kubelet",), verdict=HoldingVerdict.AGREED)
            for view in views
        ),
        device_holders=tuple(DeviceState(view=view, state=HolderState.HELD) for view in views),
    )
    heartbeat = Heartbeat(interval_seconds=30.0, version="1", started_at=1)
    return msgspec.structs.replace(batch, cluster=cluster, heartbeat=heartbeat, reports=(report,))


def lose(sample: Sample, seed: str) -> Sample:
    """Return the sample, of a lost GPU for a share of them."""
    assert sample.view is not None
    if zlib.crc32(f"{seed} {sample.view.uuid}".encode()) % 10_000 >= LOST_SHARE * 10_000:
        return sample
    return msgspec.structs.replace(sample, values={**sample.values, "gpu_state": "lost"})


def measure(table: Table, gpus: int) -> None:
    """Add a row for a fleet."""
    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(Path(folder), gpus)
        spent = []
        for step in range(ROUNDS):
            hub.report(step)
            hub.advance(20)
            spent.append(hub.evaluate())
            hub.advance(40)
        found = len(hub.findings.open_findings())
        hub.close()
    seconds = np.mean(spent[1:], axis=0)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.row(f"{gpus:,}", f"{found:,}", *(f"{one:.2f} s" for one in seconds), f"{memory:,.0f} MiB")


def main() -> int:
    """Print the table."""
    table = Table(
        f"Processor time of an evaluation of {len(RULES)} rules on a hub",
        *("GPUs", "open findings", "facts", "verdicts", "findings", "elapsed", "memory of the process"),
    )
    for gpus in (25_000, 250_000):
        measure(table, gpus)
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
