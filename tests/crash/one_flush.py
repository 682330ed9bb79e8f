"""Fork server of `tests.crash.sweep`: `python -m tests.crash.one_flush` creates, flushes and counts a hub's folder.

The hub consists of its log, registry, embedded store and flusher, without a server or background tasks.
Its processes exit without closing anything, as a killed process does: closing changes files.

Importing the hub takes several times as long as a flush, so it is imported once and every process is forked from there.
"""

import asyncio
import importlib
import json
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import msgspec

from gpufleet.codecs.batch import decode, encode
from gpufleet.hub.flush.flusher import Flusher
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.writer import FlushedState, StoreWriter
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ledger import key_of
from gpufleet.hub.receive.log import Wal
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.event import Event
from gpufleet.model.holdings import DeviceState, Holder, HolderKind, HolderState, Holding, HoldingVerdict
from gpufleet.model.machine import PciFunction
from gpufleet.model.process import Process
from gpufleet.model.reading import DimValue
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import Batch
from gpufleet.registry.sql import SqlRegistry
from gpufleet.runtime import SystemClock
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.rollup.tables import all_tables
from gpufleet.stores.clickhouse.schema.tables import (
    LATEST,
    LATEST_POSITION,
    SUBJECT_KEY,
    SUBJECT_NUMBER,
    SUBJECTS,
    TableDefinition,
)
from tests.fakes.batches import gpu_sample, gpu_view, make_batch
from tests.support.latest import write_newest_rows
from tests.support.subjects import named

MIB = 1 << 20
DAY = 86_400 * NANOS
RECEIVED = 1_795_000_000 * NANOS
BATCHES = 4
"""Number of batches. The first is flushed when the folder is created, the others are the backlog."""

PRELOADED = ("clickhouse_connect", "numpy", "pyarrow.compute", "sqlite3")
"""Modules that an opening store imports, except the engine: its threads do not survive a fork."""

TABLES = "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine != 'View' ORDER BY name"

VARYING = ("touched_hours", LATEST_POSITION.name)
"""Tables whose content may differ after a kill."""


def batch(number: int) -> Batch:
    """Return a batch by number. Together the batches have rows for every table, and samples of two days."""
    at = RECEIVED - DAY * (number % 2) + number
    view = gpu_view(number)
    fans = tuple(DimValue("gpu_fan_speed_ratio", (str(fan),), 0.5) for fan in range(2))
    sample = gpu_sample(view, at, gpu_power_watts=float(number), gpu_name=f"name {number}")
    absent = gpu_sample(view, at + 1, gpu_power_watts=Absent(Reason.TIMEOUT, f"detail {number}"))
    holder = Holder(kind=HolderKind.POD, id=f"pod-{number}", name="pod", namespace="default")
    processes = (Process(pid=number, kinds=("compute",), start_time=number, values={"memory_bytes": number}),)
    made = make_batch(number, at, samples=(msgspec.structs.replace(sample, dims=fans, processes=processes), absent))
    (report,) = made.reports
    more = {
        "events": (Event(kind="xid", at=at, view=view, code=number),),
        "holdings": (
            Holding(view=view.key, holder=holder, since=at, methods=("kubelet",), verdict=HoldingVerdict.AGREED),
        ),
        "device_holders": (DeviceState(view=view.key, state=HolderState.FREE),),
        "inventory": (PciFunction(address=f"0000:{number:02x}:00.0", vendor=0x10DE, device=1, class_code=0x30200),),
    }
    return msgspec.structs.replace(made, reports=(msgspec.structs.replace(report, **more),))


class Hub:
    """Log, registry, store and flusher of one hub."""

    def __init__(self, folder: Path) -> None:
        self.wal = Wal.open(folder / "wal", max_bytes=64 * MIB, max_body_bytes=MIB)
        for _ in self.wal.replay():
            pass
        self.registry = SqlRegistry.open(f"sqlite:///{folder / 'registry.sqlite'}")
        self.registry.migrate()
        self.registry.load()
        self.registry.register_clusters(["local"], RECEIVED)
        self.store = ClickHouseStore.open(f"chdb://{folder / 'store'}")
        self.store.migrate()
        self.store._handles.writer.command("SYSTEM STOP MERGES")  # duplicate rows stay visible
        self._quarantine = folder / "quarantine"

    def flush(self) -> None:
        """Flush the backlog, as a stopping hub does."""
        with ThreadPoolExecutor(1) as thread:
            counters = Counters()
            writer = StoreWriter(
                wal=self.wal.epoch,
                store=self.store,
                registry=self.registry,
                flushed=FlushedState.load(self.registry),
                quarantine=Quarantine(self._quarantine),
                counters=counters,
                now=SystemClock().now_ns,
            )
            flusher = Flusher(
                wal=self.wal,
                writer=writer,
                thread=thread,
                counters=counters,
                clock=SystemClock(),
                interval_seconds=0.01,
                max_records=1000,
                max_bytes=MIB,
            )
            flusher.stop()
            asyncio.run(flusher.run())

    def close(self) -> None:
        """Close store, registry and log."""
        self.store.close()
        self.registry.close()
        self.wal.close()


def make(folder: Path) -> None:
    """Create a hub that has flushed one batch and acknowledged the others."""
    hub = Hub(folder)
    for number in range(1, BATCHES + 1):
        asyncio.run(hub.wal.append(RECEIVED + number, encode(batch(number))))
        if number == 1:
            hub.flush()
    hub.close()


def flush(folder: Path) -> None:
    """Open the hub, wait for a line on stdin, flush, and write deferred rows."""
    hub = Hub(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    hub.flush()
    write_newest_rows(hub.store)


def current_rows(table: TableDefinition) -> str:
    """Return the condition of current rows. Replaced rows are left out, as a merge can remove them at any time."""
    key = ", ".join(f"`{name}`" for name in table.key)
    newest = f"SELECT {key}, max(`{table.version}`) FROM {table.name} GROUP BY {key}"
    return f"({key}, `{table.version}`) IN ({newest})"


def render_count(name: str, table: TableDefinition | None) -> str:
    """Return the query for the rows of a table and a hash of their content. Numbers of subjects differ after a kill."""
    if name == LATEST.name:  # recovery inserts some rows again
        return f"SELECT '{name}', count(), sum(cityHash64(tuple(*))) FROM {name} FINAL"
    is_numbered = table is not None and SUBJECT_NUMBER in table.columns
    content = "tuple(* EXCEPT (subject, number))" if is_numbered else "tuple(*)"
    condition = current_rows(table) if table is not None and table.version else "true"
    if name == SUBJECTS.name:
        content, condition = f"({', '.join(SUBJECT_KEY)})", "cluster != ''"
    source = named(name) if is_numbered else name
    return f"SELECT '{name}', count(), sum(cityHash64({content})) FROM {source} WHERE {condition}"


def count(folder: Path) -> None:
    """Flush the rest. Print the physical rows and a content hash of each table."""
    hub = Hub(folder)
    hub.flush()
    write_newest_rows(hub.store)
    handle = hub.store._handles.writer
    known = {table.name: table for table in all_tables()}
    counts = " UNION ALL ".join(
        render_count(name, known.get(name)) for (name,) in handle.query(TABLES).result_rows if name not in VARYING
    )
    tables = {name: (rows, content) for name, rows, content in handle.query(counts).result_rows}
    # Each attempt marks the hours that it writes to, so only the set of hours is compared.
    marks = "SELECT count(DISTINCT hour), sum(DISTINCT cityHash64(hour)) FROM touched_hours"
    tables["touched_hours"] = handle.query(marks).result_rows[0]
    sequences = hub.registry.sequences()[key_of(decode(encode(batch(1))))]
    pending = hub.registry.pending_flush(hub.wal.epoch) is not None
    found = {"tables": tables, "sequences": sequences.ranges, "backlog": hub.wal.waiting_records, "pending": pending}
    print(json.dumps(found), flush=True)


def serve() -> None:
    """Fork a process for each line `[action, folder, file for stderr]` on stdin. Print its exit code when it ends."""
    for module in PRELOADED:
        importlib.import_module(module)
    for line in iter(sys.stdin.readline, ""):
        action, folder, errors = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(action, Path(folder), errors)
        print(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)


def _run(action: str, folder: Path, errors: str) -> NoReturn:
    code = 1
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
        {"make": make, "flush": flush, "count": count}[action](folder)
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return to the server's code
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
