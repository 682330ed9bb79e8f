"""Processor time of a hub per small batch, by step: receive, log, check and store.

Method: one process, no sockets. Bundles of 64 batches (8 GPUs of 40 readings, made by `soak_load`) pass through the
HTTP endpoint, log, writer and registry into an embedded store. Each turn posts one second of the fleet's load, and each
node posts once in 15 s. The fleet has 8,334 nodes, or `--nodes`. The processor time per batch is reported once all
nodes are known: of the receiving thread, of the writing thread, and of all other threads, which insert and merge in the
store and sync the log. Wall time is not reported, as it depends on the machine.

The check for new machines (`MachineAdmission`) is part of receiving. It is also measured alone, with 10,000 and 100,000
known machines: batches of known machines, of known machines after the hub's restart, and of new machines.
"""

import argparse
import asyncio
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from benchmarks.soak_load import PERIOD_SECONDS, Node
from benchmarks.table import Table
from gpufleet.cli.daemon import tune_garbage_collector
from gpufleet.codecs.batch import decode
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, pack
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.writer import FlushedState, StoreWriter
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.decode_cache import DecodedBatchCache
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.machines import MachineAdmission
from gpufleet.hub.receive.sequences import EpochConflicts
from gpufleet.model.machine import Machine
from gpufleet.model.wire.batch import WireBatch
from gpufleet.registry.machines import MachineCache
from gpufleet.registry.sql import SqlRegistry
from gpufleet.runtime import SystemClock
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.web.hub.http import Message, Scope
from gpufleet.web.hub.ingest import BatchEndpoint

NODES = 8_334
BUNDLE = 64
MIB = 1 << 20
SETTLE_SECONDS = 5.0
"""Wait for the store's merges at the end: they are part of the cost."""

KNOWN_MACHINES, ADMITTED = (10_000, 100_000), 10_000

SCOPE: Scope = {
    "type": "http",
    "method": "POST",
    "path": "/v1/batches",
    "query_string": b"",
    "headers": [(b"content-type", BUNDLE_CONTENT_TYPE.encode())],
}


class Hub:
    """The parts of a hub between HTTP and the store."""

    def __init__(self, folder: Path, decoding: ThreadPoolExecutor, nodes: int) -> None:
        clock = SystemClock()
        self.counters = Counters()
        self.wal = Wal.open(folder / "wal", max_bytes=4 << 30, max_body_bytes=8 * MIB)
        self.registry = SqlRegistry.open(f"sqlite:///{folder}/registry.sqlite")
        self.registry.migrate()
        self.registry.load()
        self.registry.register_clusters(["local"], clock.now_ns())
        self.store = ClickHouseStore.open(f"chdb://{folder}/store")
        self.store.migrate()
        unpacked = DecodedBatchCache()
        self.writer = StoreWriter(
            wal=self.wal.epoch,
            store=self.store,
            registry=self.registry,
            flushed=FlushedState.load(self.registry),
            quarantine=Quarantine(folder / "quarantine"),
            counters=self.counters,
            now=clock.now_ns,
            decoded_cache=unpacked,
        )
        self.endpoint = BatchEndpoint(
            ingest_clock=IngestClock(clock),
            ingest=Ingest(
                wal=self.wal,
                ledger=Ledger({}, max_senders=nodes),
                clusters=frozenset(["local"]),
                counters=self.counters,
                decoding=decoding,
                conflicts=EpochConflicts(),
                decoded_cache=unpacked,
                machines=MachineAdmission(self.registry, self.wal.make_drain_check),
            ),
            pressure=ByteBudget(64 * MIB),
            counters=self.counters,
            clock=clock,
            max_body_bytes=8 * MIB,
            body_timeout_seconds=30,
        )

    async def take(self, content: bytes) -> None:
        """Send a request to the endpoint, as the server does."""
        statuses: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Message) -> None:
            statuses.append(message.get("status", 200))

        await self.endpoint(SCOPE, receive, send)
        assert set(statuses) == {200}, statuses

    def flush(self) -> int:
        """Write the backlog. Return the number of batches."""
        before = self.counters.flushed_batches
        while records := self.wal.read(0, max_records=5_000, max_bytes=16 * MIB):
            self.wal.acknowledge(self.writer.flush(records))
        return self.counters.flushed_batches - before

    def close(self) -> None:
        self.store.close()
        self.registry.close()
        self.wal.close()


def run(nodes: int, rounds: int) -> tuple[int, float, float, float]:
    """Return batches, and processor seconds of the receiving thread, the writing thread and all others."""
    fleet = [Node(number) for number in range(nodes)]
    seconds = int(PERIOD_SECONDS)
    batches, receiving, writing, others = 0, 0.0, 0.0, 0.0
    with (
        tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder,
        ThreadPoolExecutor(1) as decoding,
        asyncio.Runner() as loop,
    ):
        hub = Hub(Path(folder), decoding, nodes)
        tune_garbage_collector()
        for second in range(seconds * (rounds + 1)):
            due = fleet[second % seconds :: seconds]
            bodies = [node.next_body(time.time_ns()) for node in due]
            bundles = [pack(bodies[at : at + BUNDLE]) for at in range(0, len(bodies), BUNDLE)]
            whole, own = time.process_time(), time.thread_time()
            for bundle in bundles:
                loop.run(hub.take(bundle))
            taken = time.thread_time() - own
            count = hub.flush()
            written = time.thread_time() - own - taken
            if second == seconds * (rounds + 1) - 1:
                time.sleep(SETTLE_SECONDS)
            if second >= seconds:  # in the first round, nodes are new
                batches, receiving, writing = batches + count, receiving + taken, writing + written
                others += time.process_time() - whole - taken - written
        hub.close()
    return batches, receiving, writing, others


def admission(known: int) -> tuple[float, float, float]:
    """Return processor seconds to admit a batch of a known machine, the same after a restart, and of a new machine."""
    machines = MachineCache(max_machines=4 * known)
    at = time.time_ns()
    for number in range(known):
        machines.match("local", f"n{number}", _machine(number), at, at)
    admission = MachineAdmission(_Rooms(machines), lambda: lambda: False)
    template = decode(Node(0).next_body(at))

    def seconds(batches: list[WireBatch]) -> float:
        began = time.thread_time()
        for batch in batches:
            admitted = admission.admit(batch, at + 1)
            if admitted:
                admission.finish("local", batch.sender, admitted, is_logged=True)
        return (time.thread_time() - began) / len(batches)

    def batches(first: int, **evidence: str) -> list[WireBatch]:
        return [
            msgspec.structs.replace(
                template, sender=f"n{number}", machines=[msgspec.structs.replace(_machine(number), **evidence)]
            )
            for number in range(first, first + ADMITTED)
        ]

    return seconds(batches(0)), seconds(batches(0, boot_id="other")), seconds(batches(known))


class _Rooms:
    """The part of a registry that admission needs, without a database."""

    def __init__(self, machines: MachineCache) -> None:
        self.knows_machine = machines.knows
        self.machine_room = machines.room


def _machine(number: int) -> Machine:
    uuid = f"11111111-0000-0000-0000-{number:012x}"
    return Machine(name=f"n{number}", machine_id=f"{number:032x}", system_uuid=uuid, boot_id=f"boot-{number}")


def main(argv: list[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_hub")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args(argv)
    batches, *spans = run(options.nodes, options.rounds)
    table = Table(f"A batch of 8 GPUs, {options.nodes} senders", "processor time", "us/batch", "rows/s per core")
    for name, span in zip(("receive", "write", "store's threads, syncs", "all"), (*spans, sum(spans)), strict=True):
        table.row(name, f"{span / batches * 1e6:.0f}", f"{8 * batches / span:,.0f}")
    table.print()
    table = Table("Check for new machines, us/batch", "known machines", "known", "after a restart", "new")
    for known in KNOWN_MACHINES:
        table.row(f"{known:,}", *(f"{one * 1e6:.1f}" for one in admission(known)))
    table.print()


if __name__ == "__main__":
    main()
