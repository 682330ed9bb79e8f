"""Store of a crash run: duplicate rows stay visible to the audit."""

from pathlib import Path

from tests.crash.audit import ROWS, stored_rows
from tests.crash.site import Site, run_python

TWICE = """
import sys
from gpufleet.stores.clickhouse.store import ClickHouseStore
from tests.fakes.batches import gpu_sample, gpu_view, host_sample
from tests.support.accepted import accept
store = ClickHouseStore.open(sys.argv[1])
for token in ("one", "one", "another"):
    store.write([accept("local", "m", [host_sample(10**18), gpu_sample(gpu_view(1), 10**18)])], token)
store._handles.writer.command("OPTIMIZE TABLE samples")
store.close()
"""


def test_store_of_a_run_keeps_duplicate_rows(tmp_path: Path) -> None:
    site = Site(tmp_path / "run")
    try:
        site.open()
        site.make_store()
        run_python(TWICE, f"chdb://{site.store}")
        keys = [key for key, _ in stored_rows(site.query(ROWS), {})]
    finally:
        site.close()
    assert len(keys) == 2 * 2
    assert len(set(keys)) == 2
