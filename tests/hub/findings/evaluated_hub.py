"""A hub on a fake clock that evaluates its rules each minute, with a registry of findings in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gpufleet.fleet.attribution.claims import Claims
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.findings.allocations import AllocationTurns
from gpufleet.hub.findings.boots import AgentBoots
from gpufleet.hub.findings.durable import DurableFindings
from gpufleet.hub.findings.evaluator import FindingEvaluator
from gpufleet.hub.findings.gatherer import FactGatherer
from gpufleet.hub.findings.instant import InstantSource
from gpufleet.hub.findings.late import LateReports, PastJudge
from gpufleet.hub.findings.scan import MachineScan
from gpufleet.hub.findings.status import EvaluationStatus
from gpufleet.hub.flush.flusher import Flusher
from gpufleet.hub.liveness.senders import SenderReport
from gpufleet.hub.query.allocations import AllocationQueries
from gpufleet.hub.query.guest_turns import GuestTurns
from gpufleet.hub.query.records import CoverageCounter
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import TransitionKind
from gpufleet.model.stored.samples import AcceptedBatch
from tests.hub.liveness.fake_clock_hub import FakeClockHub, Node

MINUTE = 60.0


class EvaluatedHub(FakeClockHub):
    """The hub.

    Attributes:
        registered: registry of findings, which survives restarts.
        claims, allocations: allocations, and their queries.
        disk_free_ratio: free space of the hub's file system.
        relearn_classes: classes whose learned number of GPUs is dropped at the next start.
        is_caught_up: whether the store has the backlog of an earlier process.
    """

    def __init__(self, folder: Path, *clusters: str, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds(RULES)
        self.is_caught_up = True
        self.disk_free_ratio = 0.5
        self.relearn_classes: tuple[str, ...] = ()
        super().__init__(folder, *clusters)

    def open(self) -> None:
        """Start the hub and its evaluator with the state of its predecessor."""
        super().open()
        self.status, self.claims = EvaluationStatus(60), Claims(self.registry.allocations())
        self.allocations = self._allocation_queries()
        self.boots, self.late = AgentBoots(), LateReports(self.registered, self.registry.senders())
        gatherer = FactGatherer(
            registry=self.registry,
            store=self.store,
            coverage=CoverageCounter(
                registry=self.registry, store=self.store, clock=self.clock, stale_after_seconds=120
            ),
            senders=self.senders,
            boots=self.boots,
            late=self.late,
            scan=MachineScan(self.store, self.clock),
            allocations=AllocationTurns(self.allocations.answer, self.claims, self.clock),
            clock=self.clock,
            stale_after_seconds=120,
        )
        self.evaluator = FindingEvaluator(
            sources=InstantSource(
                liveness=self.overview.instant,
                served=lambda: self.configured,
                ingest_clock=self.ingest_clock,
                ledger=self.ledger,
                conflicts=self.conflicts,
                counters=self.counters,
                wal=self.wal,
                flush_lag_seconds=self._lag,
                disk_free_ratio=lambda: self.disk_free_ratio,
                readiness=self,
            ),
            gatherer=gatherer,
            findings=DurableFindings(self.registered, RULES, self.thresholds, relearn_classes=self.relearn_classes),
            past=PastJudge(self.store, self.registered, self.thresholds),
            late=self.late,
            contract=self.contract,
            rules=RULES,
            thresholds=self.thresholds,
            status=self.status,
            clock=self.clock,
            is_caught_up=lambda: self.is_caught_up,
            interval_seconds=60,
        )

    def _allocation_queries(self) -> AllocationQueries:
        return AllocationQueries(
            registry=self.registry,
            store=self.store,
            claims=self.claims,
            lookup=MachineLookup(registry=self.registry, store=self.store, claims=self.claims, clock=self.clock),
            turns=GuestTurns(store=self.store, clock=self.clock, stale_after_seconds=120),
            executor=QueryExecutor(self.threads),
            clock=self.clock,
            clusters=self.configured,
            stale_after_seconds=120,
        )

    async def flush(self) -> None:
        """Write the log to the store, as the hub does when it stops: failures are counted."""
        flusher = Flusher(
            wal=self.wal,
            writer=self.writer,
            thread=self.threads,
            counters=self.counters,
            clock=self.clock,
            interval_seconds=0,
            max_records=10_000,
            max_bytes=1 << 26,
        )
        flusher.stop()
        await flusher.run()

    def note_report(self, report: SenderReport) -> None:
        """Record an accepted batch."""
        super().note_report(report)
        self.boots.note(report)

    def note_written(self, batches: Sequence[AcceptedBatch]) -> None:
        """Record batches that are in the store."""
        self.late.note(batches)

    async def check(self) -> None:
        """Check registry and store, as `Readiness` does."""
        if self.registered.is_down:
            raise RegistryError("the registry is down")
        if self.store.down:
            raise StoreError("the store is down")

    async def run(self, seconds: float, nodes: Iterable[Node] = ()) -> None:
        """Advance the clock; `nodes` report, and the rules are evaluated each minute."""
        nodes, left = list(nodes), seconds
        while left > 0:
            await self.advance(min(MINUTE, left), nodes)
            await self.evaluator.evaluate(self.threads)
            left -= MINUTE

    @property
    def open_findings(self) -> dict[tuple[str, str], Finding]:
        """Open findings by rule and subject."""
        return {(one.rule, one.scope): one for one in self.status.open_findings()}

    @property
    def open_rules(self) -> set[str]:
        """Rules with an open finding."""
        return {one.rule for one in self.status.open_findings()}

    def transitions(self, rule: str) -> list[TransitionKind]:
        """Return the transitions of a rule in the registry."""
        found = self.registered.finding_transitions(0, 10_000)
        return [one.transition.kind for one in found if one.transition.finding.rule == rule]
