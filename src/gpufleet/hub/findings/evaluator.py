"""Evaluation of the rules at intervals, and judgement of the clusters by the adoption contract after each."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from gpufleet.fleet.rules.facts import FleetFacts
from gpufleet.fleet.rules.judgement import judge
from gpufleet.fleet.rules.rule import FindingRule, Thresholds
from gpufleet.hub.contract.verdicts import ContractVerdicts
from gpufleet.hub.findings.durable import DurableFindings
from gpufleet.hub.findings.failures import CONTRACT, LATE, EvaluationStopped, PartFailures
from gpufleet.hub.findings.gatherer import GatheredFacts
from gpufleet.hub.findings.instant import HubInstant
from gpufleet.hub.findings.late import LateReports, PastJudge
from gpufleet.hub.findings.status import EvaluationStatus
from gpufleet.model.errors import RegistryError
from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import FindingTransition
from gpufleet.ports.clock import Clock

MIN_INTERVAL_SECONDS = 10.0
"""Minimum time between the starts of two judgements."""

MIN_PAUSE_SECONDS = 5.0
"""Minimum pause after a judgement."""

MAX_REPLAY_SECONDS = 900.0
"""Time after the start for which the rules wait for the backlog of the log: the facts before it are old."""

WAITING = "the backlog of the log is not in the store yet"
"""Failure while the rules are not evaluated after the start."""

STATE = "state of findings"
"""Name of a part that can fail, in addition to the parts of `failures`."""


class Sources(Protocol):
    """State of the hub for a judgement; see `InstantSource`."""

    async def take(self) -> HubInstant:
        """Return the state now."""
        ...


class Gatherer(Protocol):
    """Facts for a judgement; see `FactGatherer`."""

    def gather(self, instant: HubInstant, is_stopped: Callable[[], bool]) -> GatheredFacts:
        """Return the facts at an instant. Raises EvaluationStopped once the hub stops."""
        ...

    def learn(self, class_maxima: Mapping[str, int], open_findings: Sequence[Finding]) -> None:
        """Take the largest numbers of GPUs that an earlier process learned, and its open findings."""
        ...


class FindingEvaluator:
    """Evaluates the rules. Lives on the event loop; judges on a thread of its own.

    Attributes:
        status: status of the evaluation, with the open findings.
    """

    def __init__(
        self,
        *,
        sources: Sources,
        gatherer: Gatherer,
        findings: DurableFindings,
        past: PastJudge,
        late: LateReports,
        contract: ContractVerdicts,
        rules: Sequence[FindingRule],
        thresholds: Thresholds,
        status: EvaluationStatus,
        clock: Clock,
        is_caught_up: Callable[[], bool],
        interval_seconds: float,
        judged: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect the parts of the evaluation.

        Args:
            sources: state of the hub.
            gatherer: facts.
            findings: durable findings.
            past: judge of late intervals.
            contract: verdicts about clusters by the adoption contract.
            rules: all rules, in order of precedence.
            thresholds: their thresholds.
            status: to be filled.
            clock: the hub's clock.
            is_caught_up: returns whether the store has the batches that an earlier process acknowledged.
            interval_seconds: time between the starts of two judgements.
            judged: called after each judgement.
        """
        self._sources = sources
        self._gatherer = gatherer
        self._findings = findings
        self._past = past
        self._late = late
        self._contract = contract
        self._rules = tuple(rules)
        self._thresholds = thresholds
        self._clock = clock
        self._is_caught_up = is_caught_up
        self._interval = max(interval_seconds, MIN_INTERVAL_SECONDS)
        self._judged = judged
        self._started = clock.monotonic()
        self._is_stopped = False
        self.status = status

    def stop(self) -> None:
        """Stop soon, within a part of the facts; a judgement in progress is dropped. Thread-safe."""
        self._is_stopped = True

    async def run(self, thread: Executor) -> None:
        """Evaluate at intervals, until cancelled."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(thread, self._load)
        while True:
            began = self._clock.monotonic()
            await self.evaluate(thread)
            took = self._clock.monotonic() - began
            await asyncio.sleep(max(MIN_PAUSE_SECONDS, self._interval - took))

    async def evaluate(self, thread: Executor) -> None:
        """Evaluate once. Before the backlog of an earlier process is in the store, nothing is judged."""
        is_starting = self._clock.monotonic() - self._started < MAX_REPLAY_SECONDS
        if is_starting and not self._is_caught_up():
            self.status.wait(WAITING)
            return
        instant = await self._sources.take()
        has_waited = self._clock.monotonic() - self._started >= self._interval
        await asyncio.get_running_loop().run_in_executor(thread, self._judge, instant, has_waited)
        self._judged()

    def _load(self) -> None:
        """Load the saved state, so that open findings are visible before the first judgement."""
        try:
            self._findings.load()
        except RegistryError as error:
            self.status.note({STATE: str(error)})
        self.status.open = tuple(self._findings.open_findings())

    def _judge(self, instant: HubInstant, has_waited: bool) -> None:
        began = self._clock.monotonic()
        self._learn()
        try:
            gathered = self._gatherer.gather(instant, lambda: self._is_stopped)
        except EvaluationStopped:
            return
        judgement = judge(gathered.facts, self._rules, self._thresholds, instant.liveness.now)
        failures = dict(gathered.failures)
        parts = PartFailures(self.status.failures, lambda: False)
        self._past.add(gathered.late)
        late: Sequence[FindingTransition] = ()
        if instant.has_store and not instant.registry_error:
            with parts.part(LATE):
                late = self._past.take_turn()
        try:
            self._findings.update(judgement, instant.registry_error, late, gathered.class_maxima)
            self._late.finish(self._past.senders)
        except RegistryError as error:
            failures[STATE] = str(error)
        with parts.part(CONTRACT):
            self._contract.judge(
                gathered.clusters, self._visible_findings(), instant.registry_error, has_waited=has_waited
            )
        failures = {**parts.reasons, **failures}
        status = self.status
        status.at, status.untracked = self._findings.saved_at, self._findings.untracked
        status.open = tuple(self._findings.open_findings())
        status.subjects = count_subjects(gathered.facts)
        status.seconds = self._clock.monotonic() - began
        status.note(failures)

    def _learn(self) -> None:
        """Take what an earlier process saved; without the registry, with the next judgement."""
        with contextlib.suppress(RegistryError):
            self._findings.load()
            self._gatherer.learn(self._findings.class_maxima, self._findings.open_findings())

    def _visible_findings(self) -> Sequence[Finding] | None:
        """Return the open findings; None before the first saved judgement."""
        return None if self._findings.saved_at is None else self._findings.open_findings()


def count_subjects(facts: FleetFacts) -> int:
    """Return the number of subjects of all scopes, without retired ones."""
    return sum(int((~retired).sum()) for retired in facts.retired().values())
