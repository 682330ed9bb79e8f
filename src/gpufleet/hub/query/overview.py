"""Overview of fleet, clusters and senders at an instant: liveness, coverage and completeness.

An expensive answer is computed once and shared by concurrent and shortly following requests.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

import msgspec
import numpy as np

from gpufleet.fleet.contract.report import ConformanceReport
from gpufleet.hub.contract.verdicts import ContractVerdicts
from gpufleet.hub.liveness.senders import Column, SenderKey, Senders
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.liveness.tally import NO_MACHINES, SenderPlaces, in_order, roll_up, tally
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.hub.query.finding_records import FindingCounts, LiveFindings, count_open, evaluation_record
from gpufleet.hub.query.kubernetes_records import cluster_collection
from gpufleet.hub.query.paging import PageRequest, ResultPage
from gpufleet.hub.query.records import CoverageCounter, sender_record
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.sequences import EpochConflicts, Intervals
from gpufleet.model.api.fleet import FleetAnswer, HubIngestState
from gpufleet.model.api.senders import EpochConflict, SenderRecord
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.errors import NotFoundError
from gpufleet.model.liveness import ClusterFreshness, State
from gpufleet.model.stored.ledger import MachineFreshness
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import MachineRegistry
from gpufleet.ports.store import ClusterStore

SHARED_FROM_SECONDS = 0.1
"""Computation time up to which an answer is computed for each request, and thus always current."""

VALIDITY_FACTOR = 9
"""Validity of a shared answer as a multiple of its computation time: computing takes a tenth of the time at most."""

MAX_AGE_SECONDS = 15.0
"""Maximum validity of a shared answer, in seconds after its computation."""

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """Shared answer to a query. Lives on the event loop."""

    def __init__(self, compute: Callable[[], Awaitable[T]], clock: Clock) -> None:
        """Take the function that computes the answer."""
        self._compute = compute
        self._clock = clock
        self._took = 0.0
        self._task: asyncio.Task[T] | None = None
        self._shared: tuple[T, float] | None = None  # the answer, and the second at which it expires

    async def get(self) -> T:
        """Return an answer; errors of the computation propagate."""
        if self._shared is not None and self._clock.monotonic() < self._shared[1]:
            return self._shared[0]
        if self._took <= SHARED_FROM_SECONDS:
            return await self._run()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._finished)
        return await asyncio.shield(self._task)  # a client that disconnects does not cancel it for the others

    async def _run(self) -> T:
        began = self._clock.monotonic()
        answer = await self._compute()
        ended = self._clock.monotonic()
        self._took = ended - began
        is_expensive = self._took > SHARED_FROM_SECONDS
        until = ended + min(VALIDITY_FACTOR * self._took, MAX_AGE_SECONDS)
        self._shared = (answer, until) if is_expensive else None
        return answer

    def _finished(self, task: "asyncio.Task[T]") -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # retrieved here in case that all clients disconnected


MIN_SENDERS_COMPARED = 3
"""Minimum number of sender clocks for an estimate of the hub's own clock offset."""


class Overview:
    """Answers about the fleet, clusters and senders. Lives on the event loop.

    Registry and store are queried on threads, and senders and machines are counted there.
    """

    def __init__(
        self,
        *,
        senders: Senders,
        ingest_clock: IngestClock,
        ledger: Ledger,
        conflicts: EpochConflicts,
        clusters: Clusters,
        covering: CoverageCounter,
        store: ClusterStore,
        registry: MachineRegistry,
        threads: Executor,
        clock: Clock,
        flush_lag_seconds: Callable[[], float],
        unflushed_since: Callable[[], int | None],
        findings: LiveFindings,
        contract: ContractVerdicts,
    ) -> None:
        self._senders = senders
        self._ingest_clock = ingest_clock
        self._ledger = ledger
        self._conflicts = conflicts
        self._clusters = clusters
        self._covering = covering
        self._store = store
        self._registry = registry
        self._threads = threads
        self._clock = clock
        self._flush_lag = flush_lag_seconds
        self._unflushed_since = unflushed_since
        self._findings = findings
        self._contract = contract
        self._places = SenderPlaces()
        self._fleet = SharedAnswer(self._whole, clock)
        self._states = SharedAnswer(self._sender_states, clock)

    def instant(self) -> LivenessSnapshot:
        """Return the liveness of everything now."""
        return LivenessSnapshot(self._senders, now=self._clock.now_ns(), unflushed_since=self._unflushed_since())

    async def senders(self, page: PageRequest) -> ResultPage[SenderRecord]:
        """Return a page of senders by cluster and name, with their missing batches."""
        instant, conflicts = self.instant(), self._conflicts.known()
        found = await self._run(lambda: self._senders.after(page.after, page.limit + 1))
        shown = found[: page.limit]
        runs = {who: self._ledger.runs_of(*who) for who in shown}

        def fetch() -> tuple[SenderRecord, ...]:
            retired = _retired(self._registry.machine_freshness(siblings_of_retired=True))
            return tuple(self._sender(who, runs[who], instant, retired, conflicts.get(who)) for who in shown)

        return ResultPage(await self._run(fetch), page.cursor(shown[-1]) if len(found) > len(shown) else None)

    def _sender(
        self,
        who: SenderKey,
        runs: Sequence[tuple[str, Intervals, Intervals]],
        instant: LivenessSnapshot,
        retired: Mapping[str, frozenset[str]],
        conflict: EpochConflict | None,
    ) -> SenderRecord:
        cluster, sender = who
        freshness = instant.find_freshness(cluster, sender)
        assert freshness is not None, "senders are never removed"
        liveness = instant.sender(freshness, retired=sender in retired.get(cluster, ()), conflict=conflict)
        return sender_record(freshness, runs, liveness, instant.now, conflict)

    async def sender_states(self) -> Counter[tuple[str, State]]:
        """Return the number of senders by cluster and state; in a large fleet up to some seconds old."""
        return await self._states.get()

    async def _sender_states(self) -> Counter[tuple[str, State]]:
        instant = self.instant()

        def fetch() -> Counter[tuple[str, State]]:
            retired = _retired(self._registry.machine_freshness(siblings_of_retired=True))
            found: Counter[tuple[str, State]] = Counter()
            for cluster in self._senders.clusters:
                total = tally(instant, cluster, NO_MACHINES, retired.get(cluster, frozenset()), {})
                found.update({(cluster, state): count for state, count in total.senders.items() if count})
            return found

        return await self._run(fetch)

    async def clusters(self) -> tuple[ClusterRecord, ...]:
        """Return every cluster that was ever registered, by id."""
        return (await self.fleet()).clusters

    async def cluster(self, id: str) -> ClusterRecord:  # noqa: A002 - the API's name
        """Return a cluster. Raises NotFoundError with similar names."""
        return (await self._complete([await self._clusters.get(id)], id))[0][0]

    async def contract_report(self, id: str) -> ConformanceReport:  # noqa: A002
        """Return the newest report of a served cluster by the adoption contract.

        Raises:
            NotFoundError: with similar names if there is no such cluster, or if it is closed.
        """
        record = await self._clusters.get(id)
        if not record.served:
            raise NotFoundError(f"cluster {id!r} is closed: it is not judged by the adoption contract")
        return self._contract.report(id, record.cluster.spec, self._clock.now_ns())

    async def fleet(self) -> FleetAnswer:
        """Return the fleet overview; in a large fleet up to some seconds old."""
        return await self._fleet.get()

    async def _whole(self) -> FleetAnswer:
        records, behind = await self._complete(await self._clusters.list_all(), None)
        findings = await self._run(lambda: count_open(self._findings))
        return self._total(records, self._ingest_state(behind), findings)

    async def _complete(
        self, records: Sequence[ClusterRecord], only: str | None
    ) -> tuple[tuple[ClusterRecord, ...], float | None]:
        """Fill in freshness and coverage; return the records, and how far the hub's clock is behind."""
        instant, missing = self.instant(), self._ledger.missing_by_cluster()
        conflicts: dict[str, dict[str, EpochConflict]] = {}
        for (cluster, sender), conflict in self._conflicts.known().items():
            conflicts.setdefault(cluster, {})[sender] = conflict

        def fetch() -> tuple[tuple[ClusterRecord, ...], float | None]:
            of_retired = self._registry.machine_freshness(only, siblings_of_retired=True)
            gone = [one.id for one in of_retired if one.is_retired]
            coverage = {one.cluster: one for one in self._covering.of(only, gone)}
            retired = _retired(of_retired)
            collectors = self._store.collectors([one.cluster.id for one in records])
            findings = count_open(self._findings)
            completed, aheads = [], []
            for one in records:
                id_ = one.cluster.id
                machines = self._registry.machine_freshness_columns(id_)
                total = tally(
                    instant, id_, machines, retired.get(id_, frozenset()), conflicts.get(id_, {}), self._places
                )
                own = coverage.get(id_)
                fresh: ClusterFreshness = roll_up(total, own, closed=not one.served, missing=missing.get(id_, 0))
                collection = cluster_collection(collectors.get(id_, ()), instant.now)
                completed.append(
                    msgspec.structs.replace(
                        one,
                        freshness=fresh,
                        coverage=own,
                        collection=collection,
                        findings=findings.of_cluster(id_),
                        contract=self._contract.summary(id_) if one.served else None,
                    )
                )
                aheads.append(total.aheads)
            return tuple(completed), estimate_behind(aheads)

        return await self._run(fetch)

    def _total(self, records: Sequence[ClusterRecord], ingest: HubIngestState, findings: FindingCounts) -> FleetAnswer:
        now = self._clock.now_ns()
        fresh = [one.freshness for one in records if one.freshness is not None]
        open_ = [(one, f) for one, f in zip(records, fresh, strict=True) if f.liveness.state is not State.RETIRED]
        covered = [one.coverage for one, _ in open_ if one.coverage is not None]
        current = [one.coverage for one, f in open_ if one.coverage is not None and f.liveness.state is not State.LOST]
        reporting = sum(one.reporting for one in current)
        expected = sum(one.expected or 0 for one in covered)
        live = sum(f.liveness.state is State.LIVE for _, f in open_)
        complete = [f.complete_up_to for _, f in open_ if f.complete_up_to is not None]
        return FleetAnswer(
            at=to_datetime(now),
            hub=ingest,
            states=in_order(Counter(one.liveness.state for one in fresh)),
            senders=in_order(sum((Counter(one.senders) for one in fresh), Counter())),
            machines=in_order(sum((Counter(one.machines) for one in fresh), Counter())),
            gpus_reporting=reporting,
            gpus_expected=expected,
            not_counted=tuple(
                one.cluster.id for one, _ in open_ if one.coverage is None or one.coverage.expected is None
            ),
            complete_up_to=min(complete, default=None),
            missing_batches=sum(f.missing_batches for _, f in open_),
            findings=findings.total,
            evaluation=evaluation_record(self._findings.evaluation(), now),
            clusters=tuple(records),
            summary=f"{reporting} of {expected} GPUs report; {live} of {len(open_)} clusters are live",
        )

    async def ingest_state(self) -> HubIngestState:
        """Return the ingest state of the hub."""

        def fetch() -> float | None:
            return estimate_behind([self._senders.report_rows(cluster)["ahead"] for cluster in self._senders.clusters])

        return self._ingest_state(await self._run(fetch))

    def _ingest_state(self, behind: float | None) -> HubIngestState:
        return HubIngestState(
            ingesting_seconds=self._ingest_clock.seconds,
            not_ingesting_seconds=self._ingest_clock.not_ingesting_seconds,
            rejecting=self._ingest_clock.is_not_ingesting,
            flush_lag_seconds=self._flush_lag(),
            clock_behind_seconds=behind,
        )

    async def _run(self, query: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, query)


def estimate_behind(aheads: Sequence[Column]) -> float | None:
    """Estimate how far the hub's clock is behind, from the offset of each sender's clock; NaN is an unknown offset."""
    every = np.concatenate(aheads) if aheads else np.empty(0)
    every = every[~np.isnan(every)]
    return float(np.median(every)) if len(every) >= MIN_SENDERS_COMPARED else None


def _retired(marks: Iterable[MachineFreshness]) -> dict[str, frozenset[str]]:
    """Return, by cluster, the senders whose machines are all retired.

    `marks` include all machines of every sender with a retired machine. A machine that a sender only lists is not its.
    """
    of_retired, of_others = (
        {(one.cluster, one.sender) for one in marks if one.is_retired is is_ and not one.named_only}
        for is_ in (True, False)
    )
    found: dict[str, set[str]] = {}
    for cluster, sender in of_retired - of_others:
        found.setdefault(cluster, set()).add(sender)
    return {cluster: frozenset(senders) for cluster, senders in found.items()}
