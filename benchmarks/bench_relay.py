"""Throughput of a relay to the next hub's durable log, with the load generator on the same machine.

Method: real processes, `gpufleet hub --relay-to` and a `gpufleet hub` behind it. Batches of a simulated fleet (8 GPUs
per node, every core metric) are posted to the relay over 32 persistent connections, each once. *Acknowledged* ends when
the relay has acknowledged the last batch, *forwarded* when the relay's log is empty. In the second run the hub is
started after the relay has acknowledged everything, which measures relay and hub without the load generator. For
comparison, the same bodies are posted directly to the hub.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench_ingest import gauge, post_all
from benchmarks.processes import cpu_seconds, resident_mib
from benchmarks.table import Table
from gpufleet.codecs.batch import encode
from tests.fakes.fleet import batch
from tests.support.processes import Gpufleet, free_port, get_text
from tests.support.waiting import wait_until

NODES, STEPS = 500, 20


class Run:
    """Hub and a relay in front of it, in a separate folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.hub_port, self.relay_port = free_port(), free_port()
        self.hub_url, self.relay_url = f"http://127.0.0.1:{self.hub_port}", f"http://127.0.0.1:{self.relay_port}"

    def hub(self) -> Gpufleet:
        return self._start("hub", self.hub_port)

    def relay(self) -> Gpufleet:
        return self._start("relay", self.relay_port, "--relay-to", self.hub_url)

    def forwarded(self) -> bool:
        return gauge(get_text(f"{self.relay_url}/metrics"), "gpufleet_relay_wal_records") == 0

    def _start(self, name: str, port: int, *more: str) -> Gpufleet:
        arguments = ["hub", "--listen", f"127.0.0.1:{port}", "--state", str(self.folder / name), *more]
        process = Gpufleet(arguments, self.folder / f"{name}.log")
        process.wait_for(f"http://127.0.0.1:{port}/healthz")
        return process


def main() -> int:
    """Run and print."""
    start = time.time_ns() - STEPS * 15_000_000_000 - 60_000_000_000
    bodies = [encode(batch(node, step, start_ns=start)) for step in range(STEPS) for node in range(NODES)]
    count = len(bodies)
    table = Table("relay", "what", "figure")
    table.row("batches, bytes per batch", f"{count}, {sum(map(len, bodies)) / count:.0f}")
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as scratch:
        direct = Run(Path(scratch) / "direct")
        with direct.hub():
            began = time.perf_counter()
            asyncio.run(post_all(f"{direct.hub_url}/v1/batches", bodies))
            table.row("acknowledged by the hub, no relay", f"{count / (time.perf_counter() - began):,.0f} batches/s")
        live = Run(Path(scratch) / "live")
        with live.hub(), live.relay() as relay:
            before, began = cpu_seconds(relay.process.pid), time.perf_counter()
            asyncio.run(post_all(f"{live.relay_url}/v1/batches", bodies))
            table.row("acknowledged by the relay", f"{count / (time.perf_counter() - began):,.0f} batches/s")
            wait_until(live.forwarded, seconds=300)
            table.row("forwarded", f"{count / (time.perf_counter() - began):,.0f} batches/s")
            table.row("relay processor time", f"{(cpu_seconds(relay.process.pid) - before) / count * 1e6:.0f} us/batch")
            table.row("relay resident", f"{resident_mib(relay.process.pid):.0f} MiB")
        later = Run(Path(scratch) / "later")
        with later.relay():
            asyncio.run(post_all(f"{later.relay_url}/v1/batches", bodies))
            with later.hub():
                wait_until(lambda: gauge(get_text(f"{later.relay_url}/metrics"), "gpufleet_relay_wal_records") < count)
                left = gauge(get_text(f"{later.relay_url}/metrics"), "gpufleet_relay_wal_records")
                began = time.perf_counter()
                wait_until(later.forwarded, seconds=300)
                seconds = time.perf_counter() - began
                table.row("backlog forwarded after an outage", f"{left / max(seconds, 0.01):,.0f} batches/s")
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
