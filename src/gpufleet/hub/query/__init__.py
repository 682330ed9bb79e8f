"""Queries to the hub, a file per subject. They fetch from registry and store, off the event loop."""

from collections.abc import Callable, Container
from concurrent.futures import Executor

from gpufleet.fleet.attribution.claims import Claims
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.query.allocations import AllocationQueries
from gpufleet.hub.query.claim_holders import ClaimHolders
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.events import EventQueries
from gpufleet.hub.query.finding_records import LiveFindings
from gpufleet.hub.query.findings import FindingQueries
from gpufleet.hub.query.fleet import FleetPages, FleetQueries
from gpufleet.hub.query.guest_turns import GuestTurns
from gpufleet.hub.query.holders import HolderQueries
from gpufleet.hub.query.inventory import InventoryQueries
from gpufleet.hub.query.machine_series import MachineSeriesQueries
from gpufleet.hub.query.prices import CurrentPrices
from gpufleet.hub.query.probe_changes import ProbeChangeQueries
from gpufleet.hub.query.sql import SqlQueries
from gpufleet.hub.query.status import Readiness
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.hub.query.usage import UsageQueries
from gpufleet.ports.clock import Clock
from gpufleet.ports.findings import FindingRegistry
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store


class Queries:
    """All queries of a hub.

    Attributes:
        allocations, fleet, machine_series, probe_changes, findings, holders, events, inventory, usage, sql: queries by
            subject.
        readiness: readiness of registry and store.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        claims: Claims,
        threads: Executor,
        usage_threads: Executor,
        sql_thread: Executor,
        probe_thread: Executor,
        clock: Clock,
        clusters: Container[str],
        stale_after_seconds: float,
        instant: Callable[[], LivenessSnapshot],
        prices: CurrentPrices,
        findings: FindingRegistry,
        live_findings: LiveFindings,
    ) -> None:
        self._clock = clock
        executor = QueryExecutor(threads)
        lookup = MachineLookup(registry=registry, store=store, claims=claims, clock=clock)
        turns = GuestTurns(store=store, clock=clock, stale_after_seconds=stale_after_seconds)
        self.allocations = AllocationQueries(
            registry=registry,
            store=store,
            claims=claims,
            lookup=lookup,
            turns=turns,
            executor=executor,
            clock=clock,
            clusters=clusters,
            stale_after_seconds=stale_after_seconds,
        )
        joins = ClusterJoins(store=store, lookup=lookup, clock=clock)
        self.claimed = claimed = ClaimHolders(store=store, lookup=lookup, joins=joins, clock=clock)
        pages = FleetPages(
            registry=registry,
            store=store,
            joins=joins,
            claimed=claimed,
            clock=clock,
            stale_after_seconds=stale_after_seconds,
        )
        self.fleet = FleetQueries(
            registry=registry,
            store=store,
            lookup=lookup,
            pages=pages,
            executor=executor,
            clock=clock,
            stale_after_seconds=stale_after_seconds,
            instant=instant,
        )
        self.machine_series = MachineSeriesQueries(
            store=store, lookup=lookup, executor=executor, stale_after_seconds=stale_after_seconds
        )
        self.probe_changes = ProbeChangeQueries(store=store, lookup=lookup, executor=executor)
        self.holders = HolderQueries(
            store=store,
            claims=claims,
            lookup=lookup,
            pages=pages,
            joins=joins,
            claimed=claimed,
            executor=executor,
            clock=clock,
            instant=instant,
        )
        self.events = EventQueries(
            registry=registry,
            store=store,
            lookup=lookup,
            turns=turns,
            executor=executor,
            bind_pending=self.allocations.bind_pending,
        )
        self.inventory = InventoryQueries(registry=registry, store=store, lookup=lookup, executor=executor)
        self.findings = FindingQueries(
            findings=findings, live=live_findings, registry=registry, executor=executor, clock=clock
        )
        self.usage = UsageQueries(
            registry=registry,
            store=store,
            lookup=lookup,
            joins=joins,
            turns=turns,
            threads=usage_threads,
            prices=prices,
            clock=clock,
            bind_pending=self.allocations.bind_pending,
        )
        self.sql = SqlQueries(store=store, thread=sql_thread)
        self.readiness = Readiness(registry=registry, store=store, thread=probe_thread, clock=clock)

    def now_ns(self) -> int:
        """Return the time of the hub's clock, in nanoseconds since 1970."""
        return self._clock.now_ns()
