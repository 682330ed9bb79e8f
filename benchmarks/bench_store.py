"""Write and query performance of the store: rows a second in, bytes a value on disk, latency of answers, memory.

Method: the store alone in this process, embedded, in a temporary folder; batches of a made-up fleet (8 GPUs a node,
every core metric) are made beforehand, as wire columns. The clock runs around `write`, which returns when everything
is on disk. Bytes are those of the parts after they were merged into one.
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
NODES_A_WRITE = (1, 10, 100, 1000, 5000)
KEPT_NODES, KEPT_STEPS = 50, 240
POPULATION = 10_000
REPETITIONS = 50


def accepted(nodes: Sequence[int], step: int) -> list[AcceptedBatch]:
    """Return a batch of each node at a step, as the hub hands it over."""
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
    table = Table("write(): one call, durable when it returns (median)", "nodes", "rows", "ms", "rows/s", "values/s")
    first = 1_000_000
    for nodes in NODES_A_WRITE:
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
    for first in range(0, KEPT_STEPS, 10):
        batches = [one for step in range(first, first + 10) for one in accepted(range(KEPT_NODES), step)]
        store.write(batches, f"kept-{first}")
    handle.command("OPTIMIZE TABLE samples FINAL")
    after = store.stats()["samples"]
    rows, size = after.rows - before.rows, after.bytes - before.bytes
    values = KEPT_NODES * KEPT_STEPS * VALUES_PER_BATCH
    table = Table("samples on disk, merged", "rows", "values", "bytes/row", "bytes/value")
    table.row(str(rows), str(values), f"{size / rows:.1f}", f"{size / values:.3f}")
    table.print()


def bench_answers(store: ClickHouseStore) -> None:
    for first in range(0, POPULATION, 2500):
        store.write(accepted(range(first, first + 2500), KEPT_STEPS), f"population-{first}")
    machine, view = machine_id(POPULATION // 2), f"gpu/GPU-{POPULATION // 2:08x}-0000-4000-8000-{0:012x}"
    end = START + KEPT_STEPS * STEP_NS
    metrics = ["gpu_power_watts", "gpu_utilization_ratio"]
    calls: dict[str, Callable[[], object]] = {
        f"latest(): one machine of {POPULATION}": lambda: store.latest("local", machine),
        "latest(): one view of it": lambda: store.latest("local", machine, view),
        "readers()": lambda: store.readers("local", machine),
        "series(): 8 GPUs, 2 metrics, 1 h in minutes": lambda: store.series(
            "local", machine_id(7), metrics, START, end, 60_000_000_000
        ),
        "stats()": store.stats,
    }
    table = Table("answers", "call", "median ms", "95 % within ms")
    for name, call in calls.items():
        assert call() is not None
        spans = [milliseconds(call) for _ in range(REPETITIONS)]
        table.row(name, f"{statistics.median(spans):.1f}", f"{statistics.quantiles(spans, n=20)[18]:.1f}")
    table.print()


def main() -> None:
    """Run it all and print tables."""
    memory = Table("resident memory", "when", "MiB")
    memory.row("before open", str(resident_mib()))
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        store = ClickHouseStore.open(f"chdb://{folder}/db")
        try:
            store.migrate()
            memory.row("after migrate", str(resident_mib()))
            bench_write(store)
            bench_disk(store)
            bench_answers(store)
            memory.row("at the end", str(resident_mib()))
            memory.print()
        finally:
            store.close()
    print(f"\n{len(GPU_CORE)} core metrics a GPU, {len(HOST_CORE)} a machine")


if __name__ == "__main__":
    main()
