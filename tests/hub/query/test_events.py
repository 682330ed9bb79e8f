"""Event queries: visible events of a tenant with many allocations, with few queries of the store."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.codecs.batch import to_wire
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.hub.query.events import EventQueries
from gpufleet.hub.query.guest_turns import GuestTurns
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from gpufleet.model.event import Event
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.machine import Machine
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolding
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.registry.sql import SqlRegistry
from tests.fakes.batches import gpu_view
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore

MINUTE = 60 * NANOS
PODS, NODES = 40, 4


class CountingStore(MemoryStore):
    """Store that counts the queries for holdings."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = 0

    def holdings(self, query: HoldingQuery) -> tuple[StoredHolding, ...]:
        self.queries += 1
        return super().holdings(query)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SqlRegistry]:
    found = SqlRegistry.open(f"sqlite:///{tmp_path}/registry.sqlite")
    found.migrate()
    found.load()
    yield found
    found.close()


def fill(store: MemoryStore, registry: SqlRegistry, clock: FakeClock) -> None:
    """Write pods of the tenants acme and bravo, one after another on the GPUs of each node, and an XID of each."""
    start = clock.now_ns() - PODS * MINUTE
    registry.register_clusters(["c"], start)
    for node in range(NODES):
        holdings, events = [], []
        for number in range(node, PODS, NODES):
            pod = Holder(kind=HolderKind.POD, id=f"pod-{number}")
            since, until = start + number * MINUTE, start + (number + NODES) * MINUTE
            holdings.append(
                Holding(
                    view=gpu_view(1).key,
                    holder=pod,
                    since=since,
                    until=until,
                    methods=("kubelet",),
                    verdict=HoldingVerdict.AGREED,
                )
            )
            events.append(Event(view=gpu_view(1), kind="xid", code=number, at=since + MINUTE // 2, attributes={}))
        report = MachineReport(machine=Machine(name=f"n{node}"), holdings=tuple(holdings), events=tuple(events))
        sent = Batch(cluster="c", sender=f"s{node}", epoch="e", seq=1, sent_at=start, reports=(report,))
        at = clock.now_ns()
        accepted = AcceptedBatch(received_at=at, reported_at=at, machine_ids=(f"m-{node}",), batch=to_wire(sent))
        store.write([accepted], str(node))
    for number in range(PODS):
        spec = AllocationSpec(
            kind=AllocationKind.KUBERNETES_POD,
            target=Target(cluster="c", pod_uid=f"pod-{number}"),
            tenant="bravo" if number % 5 == 0 else "acme",
            valid_from=to_datetime(start),
        )
        registry.put_allocation(f"a-{number}", spec, to_datetime(start))


def event_queries(store: MemoryStore, registry: SqlRegistry, clock: FakeClock, run: QueryExecutor) -> EventQueries:
    async def bind_pending() -> None: ...

    return EventQueries(
        registry=registry,
        store=store,
        lookup=MachineLookup(registry=registry, store=store, claims=Claims(registry.allocations()), clock=clock),
        turns=GuestTurns(store=store, clock=clock, stale_after_seconds=90),
        executor=run,
        bind_pending=bind_pending,
    )


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [(None, lambda number: number % 5 != 0), ("a-7", lambda number: number == 7)],
    ids=["tenant", "allocation"],
)
async def test_events_of_many_pods_need_few_queries(
    registry: SqlRegistry, allocation: str | None, expected: Callable[[int], bool]
) -> None:
    clock, store = FakeClock(), CountingStore()
    fill(store, registry, clock)
    with ThreadPoolExecutor(1) as threads:
        answer = await event_queries(store, registry, clock, QueryExecutor(threads)).page(
            start=0, end=clock.now_ns(), requested=PageRequest(100), tenant="acme", allocation=allocation
        )
    assert sorted(one.code for one in answer.events) == [number for number in range(PODS) if expected(number)]
    assert store.queries == 2  # of the targets, and of their machines


async def test_events_of_pods_with_too_many_holdings_are_read_for_each(
    registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holdings of all pods exceed the limit, and those of each do not."""
    clock, store = FakeClock(), CountingStore()
    fill(store, registry, clock)
    monkeypatch.setattr("gpufleet.hub.query.holding_reads.MAX_HOLDINGS", PODS // 2)
    with ThreadPoolExecutor(1) as threads:
        answer = await event_queries(store, registry, clock, QueryExecutor(threads)).page(
            start=0, end=clock.now_ns(), requested=PageRequest(100), tenant="acme"
        )
    assert [one.code for one in answer.events] == [number for number in reversed(range(PODS)) if number % 5]
