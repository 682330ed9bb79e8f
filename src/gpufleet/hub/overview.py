"""The fleet and its clusters at one instant: who was heard of, how much of it reports, up to when it is complete."""

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import groupby
from typing import TypeVar

import msgspec

from gpufleet.hub.clusters import Clusters
from gpufleet.hub.conflicts import Conflicts
from gpufleet.hub.coverage import Covering
from gpufleet.hub.intervals import Intervals
from gpufleet.hub.inventory import sender_record
from gpufleet.hub.ledger import Ledger
from gpufleet.hub.liveness.clusters import in_order, roll_up
from gpufleet.hub.liveness.judging import Instant
from gpufleet.hub.liveness.listening import Listening
from gpufleet.hub.liveness.senders import SenderLife, Senders, Who
from gpufleet.model.answer import Coverage, SenderRecord
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.fleet import FleetAnswer, HubHearing
from gpufleet.model.ledger import MachineMark
from gpufleet.model.liveness import Freshness, Liveness, State
from gpufleet.model.time import to_datetime
from gpufleet.ports import Clock, Registry

T = TypeVar("T")

SENDERS_COMPARED = 3
"""So many clocks it takes to say that it is the hub's own that is off."""


class Overview:
    """Answers about everybody at once. Lives on the event loop.

    Registry and store are asked on threads, and senders judged there: 10,000 of them take some 20 ms.
    """

    def __init__(
        self,
        *,
        senders: Senders,
        listening: Listening,
        ledger: Ledger,
        conflicts: Conflicts,
        clusters: Clusters,
        covering: Covering,
        registry: Registry,
        threads: Executor,
        clock: Clock,
        flush_lag_seconds: Callable[[], float],
    ) -> None:
        self._senders = senders
        self._listening = listening
        self._ledger = ledger
        self._conflicts = conflicts
        self._clusters = clusters
        self._covering = covering
        self._registry = registry
        self._threads = threads
        self._clock = clock
        self._flush_lag = flush_lag_seconds

    def instant(self) -> Instant:
        """Return now."""
        return Instant(self._senders, now=self._clock.now_ns(), flush_lag_seconds=self._flush_lag())

    async def senders(self) -> tuple[SenderRecord, ...]:
        """Return every sender, with what is missing of it."""
        instant, runs, conflicts = self.instant(), self._runs(), self._conflicts.known()

        def ask() -> tuple[SenderRecord, ...]:
            retired = _retired(self._registry.machine_marks())

            def record(life: SenderLife) -> SenderRecord:
                who = life.cluster, life.sender
                conflict = conflicts.get(who)
                liveness = instant.sender(life, retired=who in retired, conflict=conflict)
                return sender_record(life, runs.get(who, []), liveness, instant.now, conflict)

            return tuple(map(record, instant.lives()))

        return await self._ask(ask)

    async def sender_states(self) -> Counter[tuple[str, State]]:
        """Return how many senders of each cluster are in each state."""
        instant = self.instant()

        def ask() -> Counter[tuple[str, State]]:
            retired = _retired(self._registry.machine_marks())
            return Counter(
                (life.cluster, instant.sender(life, retired=(life.cluster, life.sender) in retired).state)
                for life in instant.lives()
            )

        return await self._ask(ask)

    async def clusters(self) -> tuple[ClusterRecord, ...]:
        """Return every cluster that was ever known, by id."""
        return (await self.fleet()).clusters

    async def cluster(self, id: str) -> ClusterRecord:  # noqa: A002 - the word of the domain
        """Return one. Raises NotFoundError."""
        record = await self._clusters.get(id)
        return (await self._complete([record], id))[0]

    async def fleet(self) -> FleetAnswer:
        """Return everything."""
        records = await self._complete(await self._clusters.list_all(), None)
        return self._total(records, await self.hearing())

    async def _complete(self, records: Sequence[ClusterRecord], only: str | None) -> tuple[ClusterRecord, ...]:
        instant, runs, conflicts = self.instant(), self._runs(), self._conflicts.known()

        def ask() -> tuple[ClusterRecord, ...]:
            marks = self._registry.machine_marks(only)
            coverage = {one.cluster: one for one in self._covering.of(only, marks)}
            retired = _retired(marks)
            machines = _by_cluster((one.cluster, instant.machine(one)) for one in marks)
            senders: dict[str, list[tuple[SenderLife, Liveness]]] = {
                cluster: [
                    (life, instant.sender(life, retired=who in retired, conflict=conflicts.get(who)))
                    for life in own
                    for who in [(cluster, life.sender)]
                ]
                for cluster, own in groupby(instant.lives(only), key=lambda life: life.cluster)
            }
            missing = {who: sum(one.missing for _, one in found) for who, found in runs.items()}
            return tuple(
                _record(one, senders.get(one.cluster.id, []), machines.get(one.cluster.id, []), coverage, missing)
                for one in records
            )

        return await self._ask(ask)

    def _total(self, records: Sequence[ClusterRecord], hearing: HubHearing) -> FleetAnswer:
        fresh = [one.freshness for one in records if one.freshness is not None]
        open_ = [(one, f) for one, f in zip(records, fresh, strict=True) if f.liveness.state is not State.RETIRED]
        covered = [one.coverage for one, _ in open_ if one.coverage is not None]
        current = [one.coverage for one, f in open_ if one.coverage is not None and f.liveness.state is not State.LOST]
        reporting = sum(one.reporting for one in current)
        expected = sum(one.expected or 0 for one in covered)
        live = sum(f.liveness.state is State.LIVE for _, f in open_)
        complete = [f.complete_up_to for _, f in open_ if f.complete_up_to is not None]
        return FleetAnswer(
            at=to_datetime(self._clock.now_ns()),
            hub=hearing,
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
            clusters=tuple(records),
            words=f"{reporting} of {expected} GPUs report; {live} of {len(open_)} clusters are live",
        )

    async def hearing(self) -> HubHearing:
        """Return how well the hub hears."""
        instant = self.instant()
        return HubHearing(
            listening_seconds=self._listening.seconds,
            deaf_seconds=self._listening.deaf_seconds,
            deaf=self._listening.is_deaf,
            flush_lag_seconds=self._flush_lag(),
            clock_behind_seconds=await self._ask(lambda: _behind(instant)),
        )

    def _runs(self) -> Mapping[Who, list[tuple[str, Intervals]]]:
        runs: dict[Who, list[tuple[str, Intervals]]] = {}
        for key, held in self._ledger.runs():
            runs.setdefault((key.cluster, key.sender), []).append((key.epoch, held))
        return runs

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)


def _record(
    record: ClusterRecord,
    senders: Sequence[tuple[SenderLife, Liveness]],
    machines: Sequence[Liveness],
    coverage: Mapping[str, Coverage],
    missing: Mapping[Who, int],
) -> ClusterRecord:
    own = coverage.get(record.cluster.id)
    freshness: Freshness = roll_up(senders, machines, own, closed=not record.served, missing=missing)
    return msgspec.structs.replace(record, freshness=freshness, coverage=own)


def _behind(instant: Instant) -> float | None:
    ahead = [one.clock_ahead_seconds for one in instant.lives()]
    return statistics.median(ahead) if len(ahead) >= SENDERS_COMPARED else None


def _retired(marks: Iterable[MachineMark]) -> set[Who]:
    """Return the senders that speak for retired machines only."""
    all_retired: dict[Who, bool] = {}
    for one in marks:
        who = one.cluster, one.sender
        all_retired[who] = all_retired.get(who, True) and one.is_retired
    return {who for who, retired in all_retired.items() if retired}


def _by_cluster(found: Iterable[tuple[str, Liveness]]) -> dict[str, list[Liveness]]:
    machines: dict[str, list[Liveness]] = {}
    for cluster, one in found:
        machines.setdefault(cluster, []).append(one)
    return machines
