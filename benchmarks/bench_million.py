"""A hub alone with a million GPUs of 40 values every 15 s: what it takes, what it holds, how it answers.

`python -m benchmarks.bench_million [--gpus 1000000] [--minutes 5] [--keep FOLDER]`.

Method: a real hub process with the embedded store and its defaults, its log with fsync, on loopback. A light client in
another process (`million_load.py`) plays 125,000 nodes of 8 GPUs in 16 clusters, each a sender, machine and epoch of
its own, and two relays in front of them: bundles of 256 batches over 16 connections. Steps, one after the other:

- *all new*: every node posts once. Its plan is the goal's, a period of 15 s; what the hub is slower, it is late.
- *all known*: every node once more. That is a period of the million in the steady state.
- *node by node*: the same without relays, each batch a request of its own, for a period of the plan at most.
- *held*: the largest part of the fleet that the hub holds at a period of 15 s, all 125,000 nodes known: two periods
  of it, after which the client was less than 5 s behind its plan and the store less than 5 s behind the log.

A step is over when its batches are in the store. Beside it, and once more at rest, one client requests the fleet,
one machine's latest values, for an hour of a metric of it, and for the first page of each list. Then the hub is
stopped, started again with everything that it knows, and its store is weighed.
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

from benchmarks.bench_peers import living_bytes
from benchmarks.million_hub import ENGINE, THREADS, MillionHub
from benchmarks.million_load import Done, Order, clusters, node_name
from benchmarks.processes import folder_bytes
from benchmarks.soak_load import GPUS_A_NODE, PERIOD_SECONDS, VALUES
from benchmarks.table import Table
from benchmarks.yardstick import yardstick_ms

PARTS = (1 / 64, 1 / 32, 1 / 16, 1 / 12, 1 / 8, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 1.0)
"""Fractions of the fleet tried in the search for the largest one that is held."""

HELD_SECONDS = 5.0
HELD_PERIODS = 2
TRIED_AT_LEAST = 2
REST_SECONDS = 5.0
QUERY_EVERY_SECONDS = 10.0
LISTS_EVERY = 3
LOOK_SECONDS = 2.0
QUERIES_AT_REST = 5
KNOWN_SECONDS = 60.0
"""Nothing more is posted after so long of a step whose senders are all known."""

QUESTIONS = {
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
    """Figures of one step: processor seconds of the hub by thread, result of the client, and latencies meanwhile."""

    name: str
    done: Done
    stored: float  # seconds until the last batch was in the store
    lag: float  # seconds that the store was behind the log when the last was acknowledged
    used: dict[str, float]
    resident: float
    spans: dict[str, list[float]]


class Run:
    """Run of a hub with its load."""

    def __init__(self, hub: MillionHub, load: "subprocess.Popen[str]", ends: float) -> None:
        self.hub = hub
        self.ends = ends
        self.written = 0  # batches in the store
        self._load = load

    def left(self) -> float:
        """Return the seconds that the run may still take."""
        return self.ends - time.monotonic()

    def step(self, name: str, order: Order) -> Step:
        """Carry out an order and wait until all of it is in the store."""
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
                time.sleep(LOOK_SECONDS)
                gauges = self.hub.gauges()
            stored = time.monotonic() - began
        time.sleep(REST_SECONDS)  # merges are a part of the price
        used = {what: seconds - used[what] for what, seconds in self.hub.used().items()}
        self.written += done.acknowledged
        assert not done.refused, f"{name}: the hub refused {done.refused} batches"
        assert gauges["flushed_batches_total"] == self.written, f"{name}: {gauges['flushed_batches_total']} written"
        step = Step(name=name, done=done, stored=stored, lag=lag, used=used, resident=self.hub.resident(), spans=spans)
        print_step(step)
        return step

    def largest(self, nodes: int, rate: float) -> tuple[str, str]:
        """Return the largest fleet tried that is held, and the smallest that is not; empty for none.

        `rate` is what the hub stored, batches/s: where to begin. Two are tried however late it is.
        """
        at = max((i for i, part in enumerate(PARTS) if part * nodes / PERIOD_SECONDS < 0.9 * rate), default=0)
        held: dict[int, str] = {}
        lost: dict[int, str] = {}
        seconds = HELD_PERIODS * PERIOD_SECONDS
        while 0 <= at < len(PARTS) and at not in (*held, *lost):
            if len(held) + len(lost) >= TRIED_AT_LEAST and self.left() < seconds + REST_SECONDS:
                break
            count = int(PARTS[at] * nodes)
            step = self.step(f"{count * GPUS_A_NODE:,} GPUs, all known", Order(nodes=count, seconds=seconds))
            is_held = max(step.done.late, step.lag) < HELD_SECONDS
            (held if is_held else lost)[at] = step.name
            at += 1 if is_held else -1
        return held.get(max(held, default=-1), ""), lost.get(min(lost, default=-1), "")


@contextmanager
def querying(hub: MillionHub, spans: dict[str, list[float]]) -> Iterator[None]:
    """Query the hub in the background; adds milliseconds by question to `spans`."""
    stop, failed = threading.Event(), []

    def query() -> None:
        turn = 0
        while not stop.wait(QUERY_EVERY_SECONDS):
            for name, path in {**QUESTIONS, **(LISTS if turn % LISTS_EVERY == 0 else {})}.items():
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
            print(f"  {len(failed)} questions failed, the first: {failed[0]}", flush=True)


def print_step(step: Step) -> None:
    """Print a step."""
    done, values = step.done, step.done.acknowledged * GPUS_A_NODE * VALUES
    rows = done.acknowledged * GPUS_A_NODE
    print(f"\n{step.name}: {done.acknowledged:,} batches, {done.again:,} turned away and posted again")
    print(
        f"  acknowledged in {done.seconds:.1f} s, {rows / done.seconds:,.0f} rows/s; stored in {step.stored:.1f} s, "
        f"{rows / step.stored:,.0f} rows/s; behind: client {done.late:.1f} s, store {step.lag:.1f} s"
    )
    shares = ", ".join(f"{name} {step.used[name] / values * 1e6:.2f}" for name in (*THREADS.values(), ENGINE))
    print(
        f"  {step.used['all'] / values * 1e6:.2f} us of processor time a value ({shares}); "
        f"client {done.cpu / values * 1e6:.2f}; resident {step.resident:,.0f} MiB"
    )
    for name, found in step.spans.items():
        print(f"  {name}: {middle(found)}")
    sys.stdout.flush()


def middle(spans: list[float]) -> str:
    """Return median and worst as text."""
    return f"{statistics.median(spans):,.0f} ms, at worst {max(spans):,.0f} ({len(spans)} times)"


def at_rest(hub: MillionHub) -> dict[str, list[float]]:
    """Run every query several times in sequence."""
    questions = {**QUESTIONS, **LISTS}
    return {name: [hub.request(path)[0] for _ in range(QUERIES_AT_REST)] for name, path in questions.items()}


@contextmanager
def loading(port: int, nodes: int) -> Iterator["subprocess.Popen[str]"]:
    """Run the client; it is ready when the context begins."""
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
    """Run all steps, and print."""
    hub = MillionHub(folder, clusters(nodes))
    try:
        hub.start()
        empty = hub.resident()
        with loading(hub.port, nodes) as load:
            run = Run(hub, load, time.monotonic() + minutes * 60)
            target = {"cluster": clusters(1)[0], "machine": node_name(min(1234, nodes - 1))}
            hub.put("/v1/allocations/one", {"kind": "bare_metal", "target": target})
            new = run.step("all new, by relays", Order(nodes=nodes))
            run.step("all known, by relays", Order(nodes=nodes, give_up=KNOWN_SECONDS))
            alone = Order(nodes=nodes, bundle=1, give_up=PERIOD_SECONDS)
            run.step("all known, node by node", alone)
            known = run.step("once more, by relays", Order(nodes=nodes, give_up=PERIOD_SECONDS))
            found = run.largest(nodes, known.done.acknowledged / known.stored)
        print()
        print(f"largest fleet tried that is held at a period of {PERIOD_SECONDS:g} s: {found[0] or 'none'};", end=" ")
        print(f"smallest that is not: {found[1] or 'none'}")
        print(f"memory a sender and its machine: {(new.resident - empty) * 1024 / nodes:.1f} KiB in total")
        table = Table(f"Answers at rest, {nodes:,} machines known, ms", "what", "median", "worst")
        for name, spans in at_rest(hub).items():
            table.row(name, f"{statistics.median(spans):,.1f}", f"{max(spans):,.1f}")
        table.print()
        hub.stop()
        print(f"\nready again after {hub.start():.1f} s with {hub.resident():,.0f} MiB; ", end="")
        print(f"the fleet's first answer took {hub.request(QUESTIONS['fleet'])[0]:,.0f} ms")
        hub.stop()
        values = run.written * GPUS_A_NODE * VALUES
        store = hub.folder / "hub" / "store"
        print(f"{living_bytes(store) / values:.2f} bytes a value in living parts,", end=" ")
        print(f"{(folder_bytes(hub.folder) - folder_bytes(store)) / 2**20:,.0f} MiB of registry and log")
    finally:
        hub.kill()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_million")
    parser.add_argument("--gpus", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--keep", type=Path, help="an empty folder that the hub's is left in")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing of it stays behind
    print(
        f"{options.gpus:,} GPUs x {VALUES} values every {PERIOD_SECONDS:g} s; yardstick {yardstick_ms():.1f} ms",
        flush=True,
    )
    nodes = options.gpus // GPUS_A_NODE
    if options.keep is not None:
        run(options.keep, nodes, options.minutes)
        return
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        run(Path(folder), nodes, options.minutes)


if __name__ == "__main__":
    main()
