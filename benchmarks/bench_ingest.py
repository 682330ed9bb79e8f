"""Ingest rate of a hub, from HTTP to the durable store, with the load generator on the same machine.

Method: a real `gpufleet hub` process with the embedded store. Batches of a simulated fleet (8 GPUs per node, every core
metric) are encoded beforehand and posted by one client process over 32 persistent connections, each batch once. Time is
measured from the first post until the hub reports an empty log, when all batches are stored. CPU is that of the hub
process, and bytes are the size of the store's folder after its parts were merged.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.processes import cpu_seconds, folder_bytes, resident_mib
from benchmarks.table import Table
from gpufleet.codecs.batch import encode
from tests.fakes.fleet import VALUES_PER_BATCH, batch
from tests.support.processes import Gpufleet, free_port, get_text

NODES, STEPS, CONNECTIONS = 500, 20, 32
CONTENT = {"Content-Type": "application/vnd.gpufleet.batch"}


async def post_all(url: str, bodies: list[bytes]) -> int:
    """Post every body over persistent connections. Return the number of retries after a 503."""
    queue = iter(bodies)
    retries = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:

        async def worker() -> None:
            nonlocal retries
            for body in queue:
                while True:
                    async with session.post(url, data=body, headers=CONTENT) as answer:
                        text = await answer.text()
                    if answer.status == 200:
                        break
                    if answer.status != 503:
                        raise RuntimeError(f"{answer.status}: {text}")
                    retries += 1
                    await asyncio.sleep(float(answer.headers.get("Retry-After", "0.1")))

        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    return retries


def gauge(page: str, name: str) -> float:
    """Return the value of a series without labels from a Prometheus page."""
    for line in page.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise KeyError(name)


def main() -> int:
    """Run and print."""
    start = time.time_ns() - STEPS * 15_000_000_000 - 60_000_000_000
    bodies = [encode(batch(node, step, start_ns=start)) for step in range(STEPS) for node in range(NODES)]
    wire = sum(map(len, bodies))
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as scratch:
        folder = Path(scratch)
        arguments = ["hub", "--listen", f"127.0.0.1:{port}", "--state", str(folder / "state")]
        with Gpufleet(arguments, folder / "log") as hub:
            hub.wait_for(f"{base}/readyz")
            cpu_before = cpu_seconds(hub.process.pid)
            began = time.perf_counter()
            retries = asyncio.run(post_all(f"{base}/v1/batches", bodies))
            acknowledged = time.perf_counter() - began
            while gauge(get_text(f"{base}/metrics"), "gpufleet_hub_wal_records") > 0:
                time.sleep(0.05)
            stored = time.perf_counter() - began
            cpu = cpu_seconds(hub.process.pid) - cpu_before
            resident = resident_mib(hub.process.pid)
            hub.stop()
        disk = folder_bytes(folder / "state" / "hub" / "store")
    values = len(bodies) * VALUES_PER_BATCH
    table = Table("ingest: HTTP to durable store", "what", "figure")
    table.row("batches x values", f"{len(bodies)} x {VALUES_PER_BATCH}")
    table.row("bytes per batch on the wire", f"{wire / len(bodies):.0f}")
    table.row("acknowledged (durable in the log)", f"{len(bodies) / acknowledged:,.0f} batches/s")
    table.row("stored", f"{len(bodies) / stored:,.0f} batches/s, {values / stored:,.0f} values/s")
    table.row("hub processor time", f"{cpu / values * 1e6:.2f} us/value")
    table.row("hub resident", f"{resident:.0f} MiB")
    table.row("store on disk", f"{disk / values:.2f} B/value")
    table.row("retries after 503", str(retries))
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
