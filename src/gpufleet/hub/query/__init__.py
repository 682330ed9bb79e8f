"""Questions to the hub, one file for each thing that is asked about.

They fetch what the pure answers need, off the event loop.
"""

from collections.abc import Callable, Container
from concurrent.futures import Executor

from gpufleet.fleet.attribution.contract import Claims
from gpufleet.fleet.usage.totals import Prices
from gpufleet.hub.liveness.states import Instant
from gpufleet.hub.query.allocations import AllocationQueries
from gpufleet.hub.query.events import EventQueries
from gpufleet.hub.query.fleet import FleetQueries
from gpufleet.hub.query.inventory import InventoryQueries
from gpufleet.hub.query.sql import SqlQueries
from gpufleet.hub.query.status import Readiness
from gpufleet.hub.query.targets import Asking, Whereabouts
from gpufleet.hub.query.usage import UsageQueries
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store


class Queries:
    """Answers questions.

    Attributes:
        allocations, fleet, events, inventory, usage, sql: by what is asked about.
        readiness: whether there is anybody to ask.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        claims: Claims,
        threads: Executor,
        sql_thread: Executor,
        probe_thread: Executor,
        clock: Clock,
        clusters: Container[str],
        stale_after_seconds: float,
        instant: Callable[[], Instant],
        prices: Prices,
    ) -> None:
        self._clock = clock
        asking = Asking(threads)
        whereabouts = Whereabouts(registry=registry, store=store, claims=claims)
        self.allocations = AllocationQueries(
            registry=registry,
            store=store,
            claims=claims,
            whereabouts=whereabouts,
            asking=asking,
            clock=clock,
            clusters=clusters,
            stale_after_seconds=stale_after_seconds,
        )
        self.fleet = FleetQueries(
            registry=registry,
            store=store,
            whereabouts=whereabouts,
            asking=asking,
            clock=clock,
            stale_after_seconds=stale_after_seconds,
            instant=instant,
        )
        self.events = EventQueries(registry=registry, store=store, whereabouts=whereabouts, asking=asking)
        self.inventory = InventoryQueries(registry=registry, store=store, whereabouts=whereabouts, asking=asking)
        self.usage = UsageQueries(registry=registry, store=store, asking=asking, prices=prices)
        self.sql = SqlQueries(store=store, thread=sql_thread)
        self.readiness = Readiness(registry=registry, store=store, thread=probe_thread, clock=clock)

    def now_ns(self) -> int:
        """Return the hub's now, in nanoseconds since 1970."""
        return self._clock.now_ns()
