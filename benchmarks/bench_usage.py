"""Usage by holder, and of allocations of pods: a month of 10,000 pods on 1,000 GPUs.

Method: the query in this process over an embedded store and a SQLite registry in a temporary folder. 125 nodes of 8
GPUs have a sample a minute for 30 days, and the hourly usage of each hour. They are off for 12 hours. Texts are stored
at the edges of these intervals only, so that the hours of each are queried for absent GPUs. Every GPU has 10 pods one
after another, with times at random. The last query has an allocation of each pod. Memory is the peak of the process in
the query, beyond what it had before.
"""

import datetime as dt
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.table import Table
from gpufleet.codecs.batch import to_wire
from gpufleet.config.hub import UsageConfig
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.guest_turns import GuestTurns
from gpufleet.hub.query.holder_usage import HolderUsageCalculator
from gpufleet.hub.query.prices import CurrentPrices
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.hub.query.usage import UsageCalculator
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from gpufleet.model.api.usage import UsageAnswer, UsageDimension
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.stored.ledger import FlushIntent
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.registry.sql import SqlRegistry
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import GPUS, batch

NODES, PODS_PER_GPU, DAYS = 125, 10, 30
HOUR = 3600 * NANOS
END = int(dt.datetime(2026, 3, 31, tzinfo=dt.UTC).timestamp()) * NANOS
START = END - DAYS * 24 * HOUR
OFF = START + 240 * HOUR, START + 252 * HOUR

PEAK = Path("/proc/self/clear_refs")

_SAMPLES = """
INSERT INTO samples (subject, provenance, measured_at, received_at, gpu_utilization_ratio, gpu_power_watts)
SELECT number, 'host_local_probe', at, at, (cityHash64(view, at) % 100) / 100, 400
FROM (SELECT number, view FROM subjects WHERE view != '' AND reader = 'nvml' AND lane = 'fast') AS known,
    (SELECT toDateTime64({start} + number * 60, 9, 'UTC') AS at FROM numbers(1440)
     WHERE NOT (at BETWEEN toDateTime({off[0]}, 'UTC') AND toDateTime({off[1]}, 'UTC'))) AS times
"""

_USAGE = """
INSERT INTO usage_1h (subject, provenance, at, version, used_seconds, idle_seconds, power_joules, power_seconds,
    energy_joules, energy_seconds)
SELECT number, 'host_local_probe', at, 1, 3564, 36, 1440000, 3600, 0, 0
FROM (SELECT number FROM subjects WHERE view != '' AND reader = 'nvml' AND lane = 'fast') AS known,
    (SELECT toDateTime({start} + number * 3600, 'UTC') AS at FROM numbers({hours})
     WHERE at < toDateTime({off[0]}, 'UTC') OR at >= toDateTime({off[1]}, 'UTC')) AS times
"""

_ROLLED = """
INSERT INTO rolled_hours (hour, version, seen, without_minutes)
SELECT toDateTime({start} + number * 3600, 'UTC'), 1, 18446744073709551615, 1 FROM numbers({hours})
"""


def with_addresses(report: Batch) -> Batch:
    """Return a batch whose GPUs report their PCI addresses as texts."""
    (of_node,) = report.reports
    samples = [
        one
        if one.view is None
        else msgspec.structs.replace(one, values={**one.values, "gpu_pci_address": one.view.pci_address or ""})
        for one in of_node.samples
    ]
    return msgspec.structs.replace(report, reports=(msgspec.structs.replace(of_node, samples=tuple(samples)),))


def holdings(node: int, views: list[str]) -> tuple[Holding, ...]:
    """Return the pods of a node, one after another on each GPU."""
    chance = random.Random(node)
    found = []
    for gpu, view in enumerate(views):
        edges = sorted(chance.randrange(START, END) for _ in range(PODS_PER_GPU - 1))
        for number, (since, until) in enumerate(zip([START, *edges], [*edges, END], strict=True)):
            name = f"{node}-{gpu}-{number}"
            pod = Holder(kind=HolderKind.POD, id=name, name=name, namespace=f"team-{chance.randrange(40)}")
            found.append(
                Holding(
                    view=view,
                    holder=pod,
                    since=since,
                    until=until,
                    methods=("kubelet",),
                    verdict=HoldingVerdict.AGREED,
                )
            )
    return tuple(found)


def fill(store: ClickHouseStore, registry: SqlRegistry) -> list[str]:
    """Write the month. Return the ids of the pods."""
    registry.register_clusters(["local"], START)
    pods = []
    for step, at in enumerate((START, *OFF, END)):
        accepted = []
        for node in range(NODES):
            report = with_addresses(batch(node, 0, start_ns=at))
            views = [one.view.key for one in report.reports[0].samples if one.view is not None]
            own = holdings(node, views) if at == END else ()
            pods += [one.holder.id for one in own]
            reports = (
                MachineReport(machine=report.reports[0].machine, samples=report.reports[0].samples, holdings=own),
            )
            wire = to_wire(
                Batch(
                    cluster="local", sender=report.sender, epoch=report.epoch, seq=step + 1, sent_at=at, reports=reports
                )
            )
            ids = tuple(registry.match("local", wire.sender, machine, at).id for machine in wire.machines)
            accepted.append(AcceptedBatch(received_at=at, reported_at=at, machine_ids=ids, batch=wire))
        registry.begin_flush(FlushIntent(wal="w", token=f"t{step}", records={}))
        store.write(accepted, f"month-{step}")
    handle, off = store._handles.writer, [at // NANOS for at in OFF]
    for day in range(DAYS):
        handle.command(_SAMPLES.format(start=START // NANOS + day * 86_400, off=off))
    hours = {"start": START // NANOS, "hours": DAYS * 24}
    handle.command(_USAGE.format(**hours, off=off))
    handle.command(_ROLLED.format(**hours))
    return pods


def memory(field: str) -> float:
    """Return a field of this process's status in MiB."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{field}:")]
    return int(line.split()[1]) / 1024


def measure(table: Table, name: str, query: Callable[[], UsageAnswer]) -> None:
    """Run a query and add its row."""
    PEAK.write_text("5")  # resets the peak
    before = memory("VmRSS")
    began, spent = time.perf_counter(), time.process_time()
    answer = query()
    seconds, spent = time.perf_counter() - began, time.process_time() - spent
    grown = max(0.0, memory("VmHWM") - before)
    known = answer.total.known_ratio or 0.0
    held = f"{answer.total.held_gpu_hours:,.0f}"
    table.row(name, f"{len(answer.rows):,}", held, f"{known:.1%}", f"{seconds:.1f}", f"{spent:.1f}", f"{grown:.0f}")


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
            pods = fill(store, registry)
            print(f"{len(pods)} pods on {NODES * GPUS} GPUs written in {time.perf_counter() - began:.0f} s")
            clock = FakeClock(END + HOUR)
            table = Table("usage of a month", "query", "rows", "GPU-hours", "known", "s", "s of processor time", "MiB")
            lookup = MachineLookup(registry=registry, store=store, claims=Claims(()), clock=clock)
            joins = ClusterJoins(store=store, lookup=lookup, clock=clock)
            by_holder = HolderUsageCalculator(
                registry=registry, store=store, joins=joins, prices=CurrentPrices(UsageConfig()), clock=clock
            )
            for by in (UsageDimension.NAMESPACE, UsageDimension.POD):
                measure(table, f"by {by}", lambda by=by: by_holder.compute(START, END, [by]))  # type: ignore[misc]
            for pod in pods:
                target = Target(cluster="local", pod_uid=pod)
                spec = AllocationSpec(
                    kind=AllocationKind.KUBERNETES_POD, target=target, tenant="t", valid_from=to_datetime(START)
                )
                registry.put_allocation(f"of-{pod}", spec, to_datetime(START))
            claims = Claims(registry.allocations())
            lookup = MachineLookup(registry=registry, store=store, claims=claims, clock=clock)
            of_allocations = UsageCalculator(
                registry=registry,
                store=store,
                lookup=lookup,
                joins=ClusterJoins(store=store, lookup=lookup, clock=clock),
                turns=GuestTurns(store=store, clock=clock, stale_after_seconds=90),
                prices=CurrentPrices(UsageConfig()),
                clock=clock,
            )
            measure(
                table, "10,000 allocations", lambda: of_allocations.compute(START, END, [UsageDimension.ALLOCATION])
            )
            table.print()
        finally:
            registry.close()
            store.close()


if __name__ == "__main__":
    main()
