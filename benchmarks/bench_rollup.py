"""Cost of minute and hour rollups: processor time per row of samples, compared with its insert, and bytes on disk.

Method: the embedded store in this process and a temporary folder. It gets four hours of a simulated fleet (8 GPUs per
node, every core metric, a sample every 15 s) with a write every two minutes. The rollup of the first, partial hour and
of the second hour is not measured. The third hour is measured with its inserts and merges, the fourth without minutes.
Bytes are those of the parts after they were merged into one.
"""

import tempfile
import time

from benchmarks.bench_store import accepted
from benchmarks.table import Table
from gpufleet.model.stored.retention import UNLIMITED, Retention
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.fleet import GPUS, STEP_NS

NODES, HOURS = 60, 4
STEPS_PER_HOUR = 3600 * 10**9 // STEP_NS
STEPS_PER_WRITE = 8
ROWS_PER_HOUR = NODES * (GPUS + 1) * STEPS_PER_HOUR
TABLES = ("samples", "windows_1m", "windows_1h", "state_windows_1m", "state_windows_1h", "usage_1h")


def write(store: ClickHouseStore) -> float:
    """Write all batches. Return the microseconds of processor time per row."""
    spent = 0.0
    for first in range(0, HOURS * STEPS_PER_HOUR, STEPS_PER_WRITE):
        batches = [one for step in range(first, first + STEPS_PER_WRITE) for one in accepted(range(NODES), step)]
        began = time.process_time()
        store.write(batches, f"rollup-{first}")
        spent += time.process_time() - began
    return spent / ROWS_PER_HOUR / HOURS * 1e6


def roll_up(store: ClickHouseStore, retention: Retention, hours: int) -> list[float]:
    """Compute hours. Return the microseconds of processor time per row of each, for hours of equal size."""
    store._retention = retention
    spent = []
    for _ in range(hours):
        began = time.process_time()
        store.roll_up(time.time_ns() + 3600 * 10**9)
        spent.append((time.process_time() - began) / ROWS_PER_HOUR * 1e6)
    return spent


def main() -> None:
    """Run and print tables."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        store = ClickHouseStore.open(f"chdb://{folder}/db")
        try:
            store.migrate()
            written = write(store)
            _, _, with_minutes = roll_up(store, UNLIMITED, 3)
            handle = store._handles.writer
            for name in TABLES:
                handle.command(f"OPTIMIZE TABLE {name} FINAL")
            sizes = store.stats()
            without = roll_up(store, Retention(raw_days=0, rollup_1m_days=0, rollup_1h_days=0), 1)[0]
        finally:
            store.close()
    table = Table("us of processor time per row of samples", "step", "us")
    for what, spent in (("insert", written), ("minutes and hours", with_minutes), ("only hours", without)):
        table.row(what, f"{spent:.1f}")
    table.print()
    table = Table("on disk, merged", "table", "rows", "bytes", "bytes/row")
    for name in TABLES:
        table.row(name, str(sizes[name].rows), str(sizes[name].bytes), f"{sizes[name].bytes / sizes[name].rows:.1f}")
    table.print()


if __name__ == "__main__":
    main()
