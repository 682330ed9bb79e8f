"""Latency of the fleet's lists: pages of nodes, machines and GPUs over a fleet of 20,000 machines.

Method: the lists in this process over an embedded store and a SQLite registry in a temporary folder. Each of 20,000
machines (8 GPUs, every core metric) has written one batch. A page of 1,000 is requested at the start, in the middle and
at the end of the fleet. Encoding as JSON is included.
"""

import statistics
import tempfile
import time
from collections.abc import Callable

import msgspec

from benchmarks.bench_store import START, milliseconds
from benchmarks.table import Table
from gpufleet.codecs.batch import to_wire
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.hub.liveness.senders import Senders
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.hub.query.claim_holders import ClaimHolders
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.fleet import FleetPages
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.model.stored.ledger import FlushIntent
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.registry.sql import SqlRegistry
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import STEP_NS, batch

MACHINES, AT_ONCE = 20_000, 2_500
REPETITIONS = 3


def fill(store: ClickHouseStore, registry: SqlRegistry) -> None:
    """Write a batch of every machine."""
    registry.register_clusters(["local"], START)
    for first in range(0, MACHINES, AT_ONCE):
        accepted = []
        for node in range(first, first + AT_ONCE):
            wire = to_wire(batch(node, 0, start_ns=START))
            ids = tuple(registry.match("local", wire.sender, machine, START).id for machine in wire.machines)
            accepted.append(AcceptedBatch(received_at=START, reported_at=START, machine_ids=ids, batch=wire))
        registry.begin_flush(FlushIntent(wal="w", token="t", records={}))
        store.write(accepted, f"population-{first}")


def main() -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        store = ClickHouseStore.open(f"chdb://{folder}/db")
        registry = SqlRegistry.open(f"sqlite:///{folder}/registry.sqlite")
        try:
            store.migrate()
            registry.migrate()
            registry.load()
            began = time.perf_counter()
            fill(store, registry)
            print(f"{MACHINES} machines written in {time.perf_counter() - began:.0f} s")
            clock = FakeClock(START + STEP_NS)
            lookup = MachineLookup(registry=registry, store=store, claims=Claims(()), clock=clock)
            joins = ClusterJoins(store=store, lookup=lookup, clock=clock)
            claimed = ClaimHolders(store=store, lookup=lookup, joins=joins, clock=clock)
            lists = FleetPages(
                registry=registry, store=store, joins=joins, claimed=claimed, clock=clock, stale_after_seconds=90
            )
            instant = LivenessSnapshot(Senders(IngestClock(clock)), now=clock.now_ns(), unflushed_since=None)
            every = registry.machines()
            keys = [None, *((one.cluster, one.machine.name, one.id) for one in (every[MACHINES // 2], every[-1001]))]
            calls: dict[str, Callable[[PageRequest], object]] = {
                "nodes, 1,000 per page": lambda page: lists.nodes(None, page, instant),
                "machines, 1,000 per page": lambda page: lists.machines(None, page, instant),
                "GPUs, 1,000 per page": lambda page: lists.gpus(None, None, page, instant),
                "nodes, 100 per page": lambda page: lists.nodes(
                    None, msgspec.structs.replace(page, limit=100), instant
                ),
            }
            table = Table(f"lists of {MACHINES} machines x 8 GPUs", "page", "median ms", "maximum ms", "bytes")
            for name, call in calls.items():
                size = len(msgspec.json.encode(call(PageRequest())))
                spans = [
                    milliseconds(lambda c=call, k=key: msgspec.json.encode(c(PageRequest(after=k))))  # type: ignore[misc]
                    for key in keys
                    for _ in range(REPETITIONS)
                ]
                table.row(name, f"{statistics.median(spans):.0f}", f"{max(spans):.0f}", f"{size:,}")
            one = every[MACHINES // 2]
            span = statistics.median(milliseconds(lambda: store.latest(one.cluster, one.id)) for _ in range(30))
            table.row("latest of one machine", f"{span:.1f}", "", "")
            span = statistics.median(milliseconds(lambda: store.reporting_gpus(START - 1, 2 * START)) for _ in range(9))
            table.row("reporting GPUs of the whole fleet", f"{span:.1f}", "", "")
            table.print()
        finally:
            registry.close()
            store.close()


if __name__ == "__main__":
    main()
