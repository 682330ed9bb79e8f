"""Merging of samples over a simulated day: how often a row is rewritten, at how many parts, and the cost of a rewrite.

`python -m benchmarks.bench_merging [--flushes 86400] [--kib 78] [--parts N] [--growth N]`.

Method: the embedded engine in this process and a temporary folder. A table with the merge settings of `samples` gets a
part of one incompressible value per simulated second, since the engine selects merges by bytes. 78 KiB are a second of
67,000 GPUs with a sample every 15 s. Merges have to end before every fourth part, as in a hub, which flushes once a
second. Parts are younger than in a hub: the engine merges old parts a little earlier.

A rewrite is measured with parts of `samples` that have 4,500 rows with every core metric and are merged into one.
"""

import argparse
import tempfile
import time

from benchmarks.bench_store import ROWS_PER_BATCH, accepted
from benchmarks.table import Table
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.tables import MERGE_SETTINGS

DAY_FLUSHES = 86_400
POLLED_EVERY = 4
NODES = 500
MERGED_PARTS = 16

_CREATE = "CREATE TABLE merged (flush UInt32, content String CODEC(NONE)) ENGINE = ReplacingMergeTree ORDER BY flush"
_BYTES = "SELECT sum(value) FROM system.events WHERE event = 'MergedUncompressedBytes'"
_MERGES = "SELECT count() FROM system.merges"
_PARTS = "SELECT count() FROM system.parts WHERE table = 'merged' AND active"


def bench_rewrites(handle: Handle, flushes: int, size: int, settings: dict[str, int]) -> None:
    """Print how often a row is rewritten, and the number of parts."""
    rendered = ", ".join(f"{name} = {number}" for name, number in settings.items())
    handle.command(f"{_CREATE} SETTINGS {rendered}")
    before, parts = _number(handle, _BYTES), []
    for second in range(flushes):
        handle.command(f"INSERT INTO merged SELECT {second}, randomString({size})")
        if second % POLLED_EVERY == 0:
            while _number(handle, _MERGES):
                time.sleep(0.001)
            parts.append(_number(handle, _PARTS))
    rewritten = (_number(handle, _BYTES) - before) / size / flushes
    handle.command("DROP TABLE merged SYNC")
    table = Table(
        f"{flushes:,} flushes of {size >> 10} KiB; {rendered}",
        "times a row is rewritten",
        "parts, mean",
        "parts, maximum",
    )
    table.row(f"{rewritten:.2f}", f"{sum(parts) / len(parts):.1f}", str(max(parts)))
    table.print()


def bench_rewrite(store: ClickHouseStore) -> None:
    """Print the processor time of a rewrite."""
    handle = store._handles.writer
    handle.command("SYSTEM STOP MERGES samples")
    for step in range(MERGED_PARTS):
        store.write(accepted(range(NODES), step), f"part-{step}")
    handle.command("SYSTEM START MERGES samples")
    began = time.process_time()
    handle.command("OPTIMIZE TABLE samples FINAL")
    spent = time.process_time() - began
    table = Table("a row of samples, us of processor time", "rewrite")
    table.row(f"{spent / (MERGED_PARTS * NODES * ROWS_PER_BATCH) * 1e6:.2f}")
    table.print()


def _number(handle: Handle, query: str) -> int:
    return int(handle.query(query).result_rows[0][0])


def main(argv: list[str] | None = None) -> None:
    """Run and print."""
    parts, growth = MERGE_SETTINGS
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_merging")
    parser.add_argument("--flushes", type=int, default=DAY_FLUSHES)
    parser.add_argument("--kib", type=int, default=78)
    parser.add_argument("--parts", type=int, default=MERGE_SETTINGS[parts])
    parser.add_argument("--growth", type=int, default=MERGE_SETTINGS[growth])
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        store = ClickHouseStore.open(f"chdb://{folder}/db")
        try:
            store.migrate()
            settings = {parts: options.parts, growth: options.growth}
            bench_rewrites(store._handles.writer, options.flushes, options.kib << 10, settings)
            bench_rewrite(store)
        finally:
            store.close()


if __name__ == "__main__":
    main()
