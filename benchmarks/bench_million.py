"""Single hub with a million GPUs of 40 readings every 15 s: ingest rate, sustained fleet size, and query latency.

`python -m benchmarks.bench_million [--gpus 1000000] [--minutes 5] [--keep FOLDER]`.

Method: a real hub process with the embedded store and default settings, its log with fsync, on loopback. A light client
in another process (`million_load.py`) simulates 125,000 nodes of 8 GPUs in 16 clusters, each with its own sender,
machine and epoch. It posts like two relays: bundles of 256 batches over 16 connections. The steps are:

- *all new*: every node posts once. The plan is one period of 15 s, and a slower hub makes the client late.
- *all known*: every node posts again. This is one period of the fleet in steady state.
- *node by node*: the same without relays, one request per batch, for at most one period of the plan.
- *sustained*: the largest part of the fleet that the hub sustains at a period of 15 s with all 125,000 nodes known.
  After two periods the client is less than 5 s behind its plan, and the store less than 5 s behind the log.

A step ends when its batches are stored. During each step, and again without load, one client queries the fleet, the
latest values and an hour of one metric of a machine, and the first page of each list. Then the hub is stopped and
restarted with its state, and the size of its store is measured.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from benchmarks.bench_peers import active_bytes
from benchmarks.million_hub import ENGINE, THREADS, MillionHub
from benchmarks.million_load import Done, Order, clusters, node_name
from benchmarks.processes import folder_bytes
from benchmarks.soak_load import GPUS_PER_NODE, PERIOD_SECONDS, VALUES
from benchmarks.table import Table
from benchmarks.yardstick import yardstick_ms

PARTS = (1 / 64, 1 / 32, 1 / 16, 1 / 12, 1 / 8, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 1.0)
"""Fractions of the fleet in the search for the largest sustained fleet."""

SUSTAINED_SECONDS = 5.0
SUSTAINED_PERIODS = 2
MIN_TRIES = 2
REST_SECONDS = 5.0
QUERY_EVERY_SECONDS = 10.0
LISTS_EVERY = 3
POLL_SECONDS = 2.0
QUERY_REPETITIONS = 5
KNOWN_SECONDS = 60.0
"""Maximum duration of posting in a step with known senders."""

QUERIES = {
    "fleet": "/v1/fleet",
    "a machine's latest": "/v1/allocations/one/metrics",
    "its series, 1 h": "/v1/allocations/one/series?metric=gpu_power_watts",
}
LISTS = {
    "machines, a page": "/v1/machines?limit=1000",
    "GPUs, a page": "/v1/gpus?limit=1000",
    "senders, a page": "/v1/senders?limit=1000",
    "own metrics": "/metrics",
}


class Step(msgspec.Struct, kw_only=True):
    """Figures of one step: result of the client, processor seconds of the hub by thread, and query latencies."""

    name: str
    done: Done
    stored: float  # seconds until the last batch was stored
    lag: float  # seconds of the store behind the log at the last acknowledgement
    used: dict[str, float]
    resident: float
    spans: dict[str, list[float]]


class Run:
    """Run of a hub with its load."""

    def __init__(self, hub: MillionHub, load: "subprocess.Popen[str]", ends: float) -> None:
        self.hub = hub
        self.ends = ends
        self.written = 0  # stored batches
        self._load = load

    def left(self) -> float:
        """Return the remaining seconds of the run."""
        return self.ends - time.monotonic()

    def step(self, name: str, order: Order) -> Step:
        """Execute an order, and wait until all its batches are stored."""
        assert self._load.stdin is not None
        assert self._load.stdout is not None
        spans: dict[str, list[float]] = {}
        used, began = self.hub.used(), time.monotonic()
        print(msgspec.json.encode(order).decode(), file=self._load.stdin, flush=True)
        with querying(self.hub, spans):
            done = msgspec.json.decode(self._load.stdout.readline(), type=Done)
            gauges = self.hub.gauges()
            lag = gauges["flush_lag_seconds"]
            while gauges["wal_records"]:
                time.sleep(POLL_SECONDS)
                gauges = self.hub.gauges()
            stored = time.monotonic() - began
        time.sleep(REST_SECONDS)  # merges are part of the cost
        used = {what: seconds - used[what] for what, seconds in self.hub.used().items()}
        self.written += done.acknowledged
        assert not done.refused, f"{name}: the hub refused {done.refused} batches"
        assert gauges["flushed_batches_total"] == self.written, f"{name}: {gauges['flushed_batches_total']} written"
        step = Step(name=name, done=done, stored=stored, lag=lag, used=used, resident=self.hub.resident(), spans=spans)
        print_step(step)
        return step

    def largest(self, nodes: int, rate: float) -> tuple[str, str]:
        """Return the names of the largest sustained and the smallest unsustained fleet, empty for none.

        `rate` is the hub's rate in batches/s, where the search starts. At least two fleets are tried.
        """
        at = max((i for i, part in enumerate(PARTS) if part * nodes / PERIOD_SECONDS < 0.9 * rate), default=0)
        sustained: dict[int, str] = {}
        unsustained: dict[int, str] = {}
        seconds = SUSTAINED_PERIODS * PERIOD_SECONDS
        while 0 <= at < len(PARTS) and at not in (*sustained, *unsustained):
            if len(sustained) + len(unsustained) >= MIN_TRIES and self.left() < seconds + REST_SECONDS:
                break
            count = int(PARTS[at] * nodes)
            step = self.step(f"{count * GPUS_PER_NODE:,} GPUs, all known", Order(nodes=count, seconds=seconds))
            is_sustained = max(step.done.late, step.lag) < SUSTAINED_SECONDS
            (sustained if is_sustained else unsustained)[at] = step.name
            at += 1 if is_sustained else -1
        return sustained.get(max(sustained, default=-1), ""), unsustained.get(min(unsustained, default=-1), "")


@contextmanager
def querying(hub: MillionHub, spans: dict[str, list[float]]) -> Iterator[None]:
    """Query the hub in the background. Add latencies in milliseconds by query to `spans`."""
    stop, failed = threading.Event(), []

    def query() -> None:
        turn = 0
        while not stop.wait(QUERY_EVERY_SECONDS):
            for name, path in {**QUERIES, **(LISTS if turn % LISTS_EVERY == 0 else {})}.items():
                try:
                    spans.setdefault(name, []).append(hub.request(path)[0])
                except (OSError, AssertionError) as error:
                    failed.append(f"{path}: {error!r}")
            turn += 1

    thread = threading.Thread(target=query, name="querying")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if failed:
            print(f"  {len(failed)} queries failed, the first: {failed[0]}", flush=True)


def print_step(step: Step) -> None:
    """Print the figures of a step."""
    done, values = step.done, step.done.acknowledged * GPUS_PER_NODE * VALUES
    rows = done.acknowledged * GPUS_PER_NODE
    print(f"\n{step.name}: {done.acknowledged:,} batches, {done.retried:,} retries")
    print(
        f"  acknowledged in {done.seconds:.1f} s, {rows / done.seconds:,.0f} rows/s; stored in {step.stored:.1f} s, "
        f"{rows / step.stored:,.0f} rows/s; late: client {done.late:.1f} s, store {step.lag:.1f} s"
    )
    shares = ", ".join(f"{name} {step.used[name] / values * 1e6:.2f}" for name in (*THREADS.values(), ENGINE))
    print(
        f"  {step.used['all'] / values * 1e6:.2f} us of processor time per value ({shares}); "
        f"client {done.cpu / values * 1e6:.2f}; resident {step.resident:,.0f} MiB"
    )
    for name, found in step.spans.items():
        print(f"  {name}: {median_text(found)}")
    sys.stdout.flush()


def median_text(spans: list[float]) -> str:
    """Return median and maximum as text."""
    return f"{statistics.median(spans):,.0f} ms, maximum {max(spans):,.0f} ms ({len(spans)} queries)"


def query_all(hub: MillionHub) -> dict[str, list[float]]:
    """Run every query several times in sequence, without load."""
    queries = {**QUERIES, **LISTS}
    return {name: [hub.request(path)[0] for _ in range(QUERY_REPETITIONS)] for name, path in queries.items()}


@contextmanager
def loading(port: int, nodes: int) -> Iterator["subprocess.Popen[str]"]:
    """Run the client. It is ready when the context begins."""
    command = [sys.executable, "-m", "benchmarks.million_load", str(port), str(nodes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert _line(process.stdout) == "{}\n", "the client did not start"
            yield process
        finally:
            process.kill()


def _line(pipe: IO[str] | None) -> str:
    assert pipe is not None
    return pipe.readline()


def run(folder: Path, nodes: int, minutes: float) -> None:
    """Run all steps and print their figures."""
    hub = MillionHub(folder, clusters(nodes))
    try:
        hub.start()
        empty = hub.resident()
        with loading(hub.port, nodes) as load:
            run = Run(hub, load, time.monotonic() + minutes * 60)
            target = {"cluster": clusters(1)[0], "machine": node_name(min(1234, nodes - 1))}
            hub.put("/v1/allocations/one", {"kind": "bare_metal", "target": target})
            new = run.step("all new, with relays", Order(nodes=nodes))
            run.step("all known, with relays", Order(nodes=nodes, give_up=KNOWN_SECONDS))
            alone = Order(nodes=nodes, bundle=1, give_up=PERIOD_SECONDS)
            run.step("all known, node by node", alone)
            known = run.step("all known again, with relays", Order(nodes=nodes, give_up=PERIOD_SECONDS))
            found = run.largest(nodes, known.done.acknowledged / known.stored)
        print()
        print(f"largest fleet sustained at a period of {PERIOD_SECONDS:g} s: {found[0] or 'none'};", end=" ")
        print(f"smallest not sustained: {found[1] or 'none'}")
        print(f"memory per sender and machine: {(new.resident - empty) * 1024 / nodes:.1f} KiB in total")
        table = Table(f"Queries without load, {nodes:,} known machines, ms", "query", "median", "maximum")
        for name, spans in query_all(hub).items():
            table.row(name, f"{statistics.median(spans):,.1f}", f"{max(spans):,.1f}")
        table.print()
        hub.stop()
        print(f"\nready again after {hub.start():.1f} s with {hub.resident():,.0f} MiB; ", end="")
        machine, fleet = (hub.first_answer(QUERIES[name]) for name in ("a machine's latest", "fleet"))
        print(f"then the first answer for a machine after {machine:.2f} s, for the fleet after {machine + fleet:.2f} s")
        hub.stop()
        values = run.written * GPUS_PER_NODE * VALUES
        store = hub.folder / "hub" / "store"
        print(f"{active_bytes(store) / values:.2f} bytes per value in active parts,", end=" ")
        print(f"{(folder_bytes(hub.folder) - folder_bytes(store)) / 2**20:,.0f} MiB of registry and log")
    finally:
        hub.kill()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_million")
    parser.add_argument("--gpus", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--keep", type=Path, help="empty folder in which the hub's folder is kept")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that contexts end the processes
    print(
        f"{options.gpus:,} GPUs x {VALUES} values every {PERIOD_SECONDS:g} s; yardstick {yardstick_ms():.1f} ms",
        flush=True,
    )
    nodes = options.gpus // GPUS_PER_NODE
    if options.keep is not None:
        run(options.keep, nodes, options.minutes)
        return
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        run(Path(folder), nodes, options.minutes)


if __name__ == "__main__":
    main()
