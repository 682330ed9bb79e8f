"""Write and query performance of the store: rows/s, bytes per value on disk, query latency, memory.

Method: the embedded store in this process and a temporary folder. Batches of a simulated fleet (8 GPUs per node, every
core metric) are made beforehand as wire columns. The duration of `write` is measured, which returns when everything is
on disk. Bytes are those of the parts after they were merged into one.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.table import Table
from gpufleet.codecs.batch import to_wire
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.fleet import GPU_CORE, GPUS, HOST_CORE, STEP_NS, VALUES_PER_BATCH, batch

START = 1_760_000_000_000_000_000
ROWS_PER_BATCH = GPUS + 1
NODES_PER_WRITE = (1, 10, 100, 1000, 5000)
DISK_NODES, DISK_STEPS = 50, 240
POPULATION = 10_000
REPETITIONS = 50


def accepted(nodes: Sequence[int], step: int) -> list[AcceptedBatch]:
    """Return a batch of each node at a step, as passed by the hub."""
    return [
        AcceptedBatch(
            received_at=START + step * STEP_NS + 40_000_000,
            reported_at=START + step * STEP_NS + 40_000_000,
            machine_ids=(machine_id(node),),
            batch=wire,
        )
        for node, wire in ((node, to_wire(batch(node, step, start_ns=START))) for node in nodes)
    ]


def machine_id(node: int) -> str:
    return f"{node * 0x9E3779B97F4A7C15 % 2**64:016x}"


def resident_mib() -> int:
    """Return the resident memory of this process (field 2 of /proc/self/statm, in pages)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def bench_write(store: ClickHouseStore) -> None:
    table = Table("write(): one durable call (median)", "nodes", "rows", "ms", "rows/s", "values/s")
    first = 1_000_000
    for nodes in NODES_PER_WRITE:
        spans = []
        for step in range(3 if nodes > 1000 else 9):
            batches = accepted(range(first, first + nodes), step)
            spans.append(milliseconds(lambda b=batches, s=step, n=nodes: store.write(b, f"write-{n}-{s}")))  # type: ignore[misc]
        first += nodes
        span = statistics.median(spans) / 1e3
        table.row(
            str(nodes),
            str(nodes * ROWS_PER_BATCH),
            f"{span * 1e3:.1f}",
            f"{nodes * ROWS_PER_BATCH / span:,.0f}",
            f"{nodes * VALUES_PER_BATCH / span:,.0f}",
        )
    table.print()


def bench_disk(store: ClickHouseStore) -> None:
    handle = store._handles.writer
    handle.command("OPTIMIZE TABLE samples FINAL")
    before = store.stats()["samples"]
    for first in range(0, DISK_STEPS, 10):
        batches = [one for step in range(first, first + 10) for one in accepted(range(DISK_NODES), step)]
        store.write(batches, f"kept-{first}")
    handle.command("OPTIMIZE TABLE samples FINAL")
    after = store.stats()["samples"]
    rows, size = after.rows - before.rows, after.bytes - before.bytes
    values = DISK_NODES * DISK_STEPS * VALUES_PER_BATCH
    table = Table("samples on disk, merged", "rows", "values", "bytes/row", "bytes/value")
    table.row(str(rows), str(values), f"{size / rows:.1f}", f"{size / values:.3f}")
    table.print()


def bench_queries(store: ClickHouseStore) -> None:
    for first in range(0, POPULATION, 2500):
        store.write(accepted(range(first, first + 2500), DISK_STEPS), f"population-{first}")
    machine, view = machine_id(POPULATION // 2), f"gpu/GPU-{POPULATION // 2:08x}-0000-4000-8000-{0:012x}"
    end = START + DISK_STEPS * STEP_NS
    metrics = ["gpu_power_watts", "gpu_utilization_ratio"]
    calls: dict[str, Callable[[], object]] = {
        f"latest(): one machine of {POPULATION}": lambda: store.latest("local", machine),
        "latest(): one view of the machine": lambda: store.latest("local", machine, view),
        "readers()": lambda: store.readers("local", machine),
        "series(): 8 GPUs, 2 metrics, 1 h in minutes": lambda: store.series(
            "local", machine_id(7), metrics, START, end, 60_000_000_000
        ),
        "stats()": store.stats,
    }
    table = Table("queries", "call", "median ms", "p95 ms")
    for name, call in calls.items():
        assert call() is not None
        spans = [milliseconds(call) for _ in range(REPETITIONS)]
        table.row(name, f"{statistics.median(spans):.1f}", f"{statistics.quantiles(spans, n=20)[18]:.1f}")
    table.print()


def main() -> None:
    """Run all measurements and print tables."""
    memory = Table("resident memory", "when", "MiB")
    memory.row("before open", str(resident_mib()))
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        store = ClickHouseStore.open(f"chdb://{folder}/db")
        try:
            store.migrate()
            memory.row("after migrate", str(resident_mib()))
            bench_write(store)
            bench_disk(store)
            bench_queries(store)
            memory.row("at the end", str(resident_mib()))
            memory.print()
        finally:
            store.close()
    print(f"\n{len(GPU_CORE)} core metrics per GPU, {len(HOST_CORE)} per machine")


if __name__ == "__main__":
    main()
