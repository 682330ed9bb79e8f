"""The fleet and its clusters at one instant: who was heard of, how much of it reports, up to when it is complete.

A dear answer is made once for all who ask for it meanwhile and shortly after.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

import msgspec
import numpy as np

from gpufleet.hub.liveness.senders import Column, Senders, Who
from gpufleet.hub.liveness.states import Instant
from gpufleet.hub.liveness.tally import NO_MACHINES, in_order, roll_up, tally
from gpufleet.hub.liveness.uptime import Listening
from gpufleet.hub.query.paging import Asked, Page
from gpufleet.hub.query.records import Covering, sender_record
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.sequences import Conflicts, Intervals
from gpufleet.model.api.answer import EpochConflict, SenderRecord
from gpufleet.model.api.fleet import FleetAnswer, HubHearing
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.liveness import Freshness, State
from gpufleet.model.stored.ledger import MachineMark
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry

DEAR_SECONDS = 0.1
"""What takes no longer is made for each who asks: it is then as new as can be."""

TIMES_AS_LONG = 9
"""An answer is given for so many times as long as it took: making it takes a tenth of the time, however many ask."""

LONGEST_SECONDS = 15.0
"""No answer is older, but for what making it takes."""

T = TypeVar("T")


class Shared(Generic[T]):
    """One question. Lives on the event loop."""

    def __init__(self, make: Callable[[], Awaitable[T]], clock: Clock) -> None:
        """Take what makes an answer."""
        self._make = make
        self._clock = clock
        self._took = 0.0
        self._making: asyncio.Task[T] | None = None
        self._kept: tuple[T, float] | None = None  # with the second from which on it is too old

    async def get(self) -> T:
        """Return an answer; raises what making it raises."""
        if self._kept is not None and self._clock.monotonic() < self._kept[1]:
            return self._kept[0]
        if self._took <= DEAR_SECONDS:
            return await self._made()
        if self._making is None:
            self._making = asyncio.create_task(self._made())
            self._making.add_done_callback(self._forget)
        return await asyncio.shield(self._making)  # who goes away does not take it from the others

    async def _made(self) -> T:
        began = self._clock.monotonic()
        made = await self._make()
        ended = self._clock.monotonic()
        self._took = ended - began
        dear = self._took > DEAR_SECONDS
        self._kept = (made, ended + min(TIMES_AS_LONG * self._took, LONGEST_SECONDS)) if dear else None
        return made

    def _forget(self, made: "asyncio.Task[T]") -> None:
        self._making = None
        if not made.cancelled():
            made.exception()  # where all who asked went away nobody is left to be told


SENDERS_COMPARED = 3
"""So many clocks it takes to say that it is the hub's own that is off."""


class Overview:
    """Answers about everybody at once. Lives on the event loop.

    Registry and store are asked on threads, and senders and machines counted there.
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
        unflushed_since: Callable[[], int | None],
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
        self._unflushed_since = unflushed_since
        self._fleet = Shared(self._whole, clock)
        self._states = Shared(self._sender_states, clock)

    def instant(self) -> Instant:
        """Return now."""
        return Instant(self._senders, now=self._clock.now_ns(), unflushed_since=self._unflushed_since())

    async def senders(self, page: Asked) -> Page[SenderRecord]:
        """Return a page of senders by cluster and name, with what is missing of them."""
        instant, conflicts = self.instant(), self._conflicts.known()
        found = await self._ask(lambda: self._senders.after(page.after, page.limit + 1))
        shown = found[: page.limit]
        runs = {who: self._ledger.runs_of(*who) for who in shown}

        def ask() -> tuple[SenderRecord, ...]:
            retired = _retired(self._registry.machine_marks(beside_retired=True))
            return tuple(self._sender(who, runs[who], instant, retired, conflicts.get(who)) for who in shown)

        return Page(await self._ask(ask), page.cursor(shown[-1]) if len(found) > len(shown) else None)

    def _sender(
        self,
        who: Who,
        runs: Sequence[tuple[str, Intervals, Intervals]],
        instant: Instant,
        retired: Mapping[str, frozenset[str]],
        conflict: EpochConflict | None,
    ) -> SenderRecord:
        cluster, sender = who
        life = instant.life(cluster, sender)
        assert life is not None, "nobody who was heard of is forgotten"
        liveness = instant.sender(life, retired=sender in retired.get(cluster, ()), conflict=conflict)
        return sender_record(life, runs, liveness, instant.now, conflict)

    async def sender_states(self) -> Counter[tuple[str, State]]:
        """Return how many senders of each cluster are in each state; of a large fleet some seconds ago."""
        return await self._states.get()

    async def _sender_states(self) -> Counter[tuple[str, State]]:
        instant = self.instant()

        def ask() -> Counter[tuple[str, State]]:
            retired = _retired(self._registry.machine_marks(beside_retired=True))
            found: Counter[tuple[str, State]] = Counter()
            for cluster in self._senders.clusters:
                total = tally(instant, cluster, NO_MACHINES, retired.get(cluster, frozenset()), {})
                found.update({(cluster, state): count for state, count in total.senders.items() if count})
            return found

        return await self._ask(ask)

    async def clusters(self) -> tuple[ClusterRecord, ...]:
        """Return every cluster that was ever known, by id."""
        return (await self.fleet()).clusters

    async def cluster(self, id: str) -> ClusterRecord:  # noqa: A002 - the word of the domain
        """Return one. Raises NotFoundError."""
        record = await self._clusters.get(id)
        return (await self._complete([record], id))[0][0]

    async def fleet(self) -> FleetAnswer:
        """Return everything; of a large fleet as it was some seconds ago."""
        return await self._fleet.get()

    async def _whole(self) -> FleetAnswer:
        records, behind = await self._complete(await self._clusters.list_all(), None)
        return self._total(records, self._hearing(behind))

    async def _complete(
        self, records: Sequence[ClusterRecord], only: str | None
    ) -> tuple[tuple[ClusterRecord, ...], float | None]:
        """Fill in freshness and coverage; return the records, and how far the hub's clock is behind."""
        instant, missing = self.instant(), self._ledger.missing_by_cluster()
        conflicts: dict[str, dict[str, EpochConflict]] = {}
        for (cluster, sender), conflict in self._conflicts.known().items():
            conflicts.setdefault(cluster, {})[sender] = conflict

        def ask() -> tuple[tuple[ClusterRecord, ...], float | None]:
            of_retired = self._registry.machine_marks(only, beside_retired=True)
            gone = [one.id for one in of_retired if one.is_retired]
            coverage = {one.cluster: one for one in self._covering.of(only, gone)}
            retired = _retired(of_retired)
            completed, aheads = [], []
            for one in records:
                id_ = one.cluster.id
                machines = self._registry.machines_heard(id_)
                total = tally(instant, id_, machines, retired.get(id_, frozenset()), conflicts.get(id_, {}))
                own = coverage.get(id_)
                fresh: Freshness = roll_up(total, own, closed=not one.served, missing=missing.get(id_, 0))
                completed.append(msgspec.structs.replace(one, freshness=fresh, coverage=own))
                aheads.append(total.aheads)
            return tuple(completed), _behind(aheads)

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

        def ask() -> float | None:
            return _behind([self._senders.words(cluster)["ahead"] for cluster in self._senders.clusters])

        return self._hearing(await self._ask(ask))

    def _hearing(self, behind: float | None) -> HubHearing:
        return HubHearing(
            listening_seconds=self._listening.seconds,
            deaf_seconds=self._listening.deaf_seconds,
            deaf=self._listening.is_deaf,
            flush_lag_seconds=self._flush_lag(),
            clock_behind_seconds=behind,
        )

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)


def _behind(aheads: Sequence[Column]) -> float | None:
    """Say how far the hub's clock is behind, out of how far each sender's is ahead of it."""
    every = np.concatenate(aheads) if aheads else np.empty(0)
    return float(np.median(every)) if len(every) >= SENDERS_COMPARED else None


def _retired(marks: Iterable[MachineMark]) -> dict[str, frozenset[str]]:
    """Return, by cluster, the senders that speak for retired machines only.

    `marks` are at least all machines of senders that speak for a retired one. Naming one is not speaking for it.
    """
    of_retired, of_others = (
        {(one.cluster, one.sender) for one in marks if one.is_retired is is_ and not one.named_only}
        for is_ in (True, False)
    )
    found: dict[str, set[str]] = {}
    for cluster, sender in of_retired - of_others:
        found.setdefault(cluster, set()).add(sender)
    return {cluster: frozenset(senders) for cluster, senders in found.items()}
