"""Construction of the evaluation of the rules about the fleet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Self

import msgspec

from gpufleet.config.hub import FindingsConfig, HubConfig
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.contract.verdicts import ContractVerdicts
from gpufleet.hub.findings.allocations import AllocationTurns
from gpufleet.hub.findings.boots import AgentBoots
from gpufleet.hub.findings.durable import DurableFindings
from gpufleet.hub.findings.evaluator import FindingEvaluator
from gpufleet.hub.findings.gatherer import FactGatherer
from gpufleet.hub.findings.instant import InstantSource
from gpufleet.hub.findings.late import LateReports, PastJudge
from gpufleet.hub.findings.scan import MachineScan
from gpufleet.hub.findings.status import EvaluationStatus
from gpufleet.hub.liveness.senders import SenderReport, Senders
from gpufleet.hub.query import Queries
from gpufleet.hub.query.finding_records import LiveFindings, NotEvaluated
from gpufleet.hub.query.records import CoverageCounter
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.updates.marks import FINDINGS
from gpufleet.model.allocation import Allocation
from gpufleet.ports.clock import Clock
from gpufleet.runtime import named_threads, supervise
from gpufleet.wiring.hub_parts import HubParts


class RuleParts(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the evaluation that exist before the queries.

    Attributes:
        senders: all senders.
        boots: boots that agents report.
        late: late intervals of senders.
        claims: all allocations.
        status: status of the evaluation, with the open findings.
    """

    senders: Senders
    boots: AgentBoots
    late: LateReports
    claims: Claims
    status: EvaluationStatus

    @classmethod
    def of(
        cls, senders: Senders, late: LateReports, allocations: Iterable[Allocation], interval_seconds: float
    ) -> Self:
        """Return the parts of a hub that starts. The interval is that of the evaluation."""
        return cls(
            senders=senders,
            boots=AgentBoots(),
            late=late,
            claims=Claims(allocations),
            status=EvaluationStatus(interval_seconds),
        )

    def note(self, report: SenderReport) -> None:
        """Record a batch that was made durable."""
        self.senders.note(report)
        self.boots.note(report)

    def live(self, config: FindingsConfig) -> LiveFindings:
        """Return the open findings for answers."""
        return self.status if config.enabled else NotEvaluated()


def make_evaluator(
    config: HubConfig,
    rules: RuleParts,
    hub: HubParts,
    source: InstantSource,
    *,
    coverage: CoverageCounter,
    contract: ContractVerdicts,
    queries: Queries,
    clock: Clock,
) -> FindingEvaluator | None:
    """Return the evaluator, or None if it is not configured. Call it before the hub accepts batches.

    Args:
        config: the configuration in force.
        rules: parts that exist already.
        hub: open files and databases.
        source: state of the hub.
        coverage: counts of GPUs.
        contract: verdicts about clusters.
        queries: answers for allocations.
        clock: the hub's clock.

    Raises:
        ConfigError: if a threshold is invalid.
    """
    if not config.findings.enabled:
        return None
    thresholds = Thresholds(RULES, config.findings.rules)
    gatherer = FactGatherer(
        registry=hub.registry,
        store=hub.store,
        coverage=coverage,
        senders=rules.senders,
        boots=rules.boots,
        late=rules.late,
        scan=MachineScan(hub.store, clock, claimed=queries.claimed),
        allocations=AllocationTurns(queries.allocations.answer, rules.claims, clock),
        clock=clock,
        stale_after_seconds=config.stale_after_seconds,
    )
    return FindingEvaluator(
        sources=source,
        gatherer=gatherer,
        findings=DurableFindings(hub.findings, RULES, thresholds, relearn_classes=config.findings.relearn_classes),
        past=PastJudge(hub.store, hub.findings, thresholds),
        late=rules.late,
        contract=contract,
        rules=RULES,
        thresholds=thresholds,
        status=rules.status,
        clock=clock,
        is_caught_up=hub.is_caught_up,
        interval_seconds=config.findings.interval_seconds,
        judged=lambda: hub.marks.note(FINDINGS),
    )


@contextlib.asynccontextmanager
async def run_evaluator(evaluator: FindingEvaluator | None, counters: Counters) -> AsyncIterator[None]:
    """Evaluate the rules while the context is open. Closing it waits for the part of a judgement in progress."""
    if evaluator is None:
        yield
        return
    thread = named_threads(1, "hub-findings")
    run = supervise(
        lambda: evaluator.run(thread), "evaluation of the rules", on_end=counters.restart_counter("findings")
    )
    task = asyncio.create_task(run, name="findings")
    try:
        yield
    finally:
        evaluator.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(thread.shutdown)
