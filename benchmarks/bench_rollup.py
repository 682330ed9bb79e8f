"""Cost of minute and hour rollups: processor time a row of samples, beside that of writing it, and bytes on disk.

Method: the store alone in this process, embedded, in a temporary folder; four hours of a made-up fleet (8 GPUs a node,
every core metric, a sample every 15 s), a write every two minutes. What there is of the first clock hour, and the
second, are made before anything is measured. Figures are of the third, with its inserts, and merges until it is over;
of the fourth without minutes. Bytes are those of the parts after they were merged into one.
"""

import tempfile
import time

from benchmarks.bench_store import accepted
from benchmarks.table import Table
from gpufleet.model.stored.retention import UNLIMITED, Retention
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.fleet import GPUS, STEP_NS

NODES, HOURS = 60, 4
STEPS_AN_HOUR = 3600 * 10**9 // STEP_NS
STEPS_A_WRITE = 8
ROWS_AN_HOUR = NODES * (GPUS + 1) * STEPS_AN_HOUR
TABLES = ("samples", "windows_1m", "windows_1h", "state_windows_1m", "state_windows_1h", "usage_1h")


def write(store: ClickHouseStore) -> float:
    """Write it all, and return the microseconds of processor time a row."""
    spent = 0.0
    for first in range(0, HOURS * STEPS_AN_HOUR, STEPS_A_WRITE):
        batches = [one for step in range(first, first + STEPS_A_WRITE) for one in accepted(range(NODES), step)]
        began = time.process_time()
        store.write(batches, f"rollup-{first}")
        spent += time.process_time() - began
    return spent / ROWS_AN_HOUR / HOURS * 1e6


def make(store: ClickHouseStore, retention: Retention, hours: int) -> list[float]:
    """Have hours made, and return the microseconds of processor time a row of each that has as many as the others."""
    store._retention = retention
    spent = []
    for _ in range(hours):
        began = time.process_time()
        store.roll_up(time.time_ns() + 3600 * 10**9)
        spent.append((time.process_time() - began) / ROWS_AN_HOUR * 1e6)
    return spent


def main() -> None:
    """Run it and print tables."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        store = ClickHouseStore.open(f"chdb://{folder}/db")
        try:
            store.migrate()
            written = write(store)
            _, _, with_minutes = make(store, UNLIMITED, 3)
            handle = store._handles.writer
            for name in TABLES:
                handle.command(f"OPTIMIZE TABLE {name} FINAL")
            sizes = store.stats()
            without = make(store, Retention(raw_days=0, rollup_1m_days=0, rollup_1h_days=0), 1)[0]
        finally:
            store.close()
    table = Table("us of processor time a row of samples", "what", "us")
    for what, spent in (("write it", written), ("minutes and hours", with_minutes), ("hours alone", without)):
        table.row(what, f"{spent:.1f}")
    table.print()
    table = Table("on disk, merged", "table", "rows", "bytes", "bytes a row")
    for name in TABLES:
        table.row(name, str(sizes[name].rows), str(sizes[name].bytes), f"{sizes[name].bytes / sizes[name].rows:.1f}")
    table.print()


if __name__ == "__main__":
    main()
