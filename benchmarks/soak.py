"""Soak test with a fifteenth of the fleet goal for an hour: timeliness, flat memory, and no loss.

`python -m benchmarks.soak [--minutes 60] [--gpus 66667] [--relays 2]`, or `make soak MINUTES=60`.

Method: a real hub with the embedded store and real relays in front of it, on loopback with default settings. A
simulated fleet (`soak_load.py`) posts 40 readings of every GPU once in 15 s. Each node is a separate sender and always
posts to the same relay, in bundles of 64 nodes. A fifteenth of 1,000,000 GPUs is 66,667 GPUs, 4,445 samples/s and
177,800 values/s. Every few seconds a client queries the latest values of allocations, the last hour of two metrics, and
fleet and self-metrics pages. Progress is printed every minute.

At the end the load stops, the queues get two minutes to drain, the processes are stopped like services, and the store
is read. The run passes (exit code 0) if all of these hold:

- The queues were drained.
- Every acknowledged batch is stored exactly once.
- No batch was refused, and no query failed.
- The fleet was never later than one period.
- Memory of hub and relays is flat: along the least-squares slope over the last three quarters of the run it grew by
  less than 10 % of the mean, or 16 MiB. Memory is not judged in runs under 20 minutes, as caches are still filling.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.bench_ingest import gauge
from benchmarks.processes import cpu_seconds, folder_bytes, resident_mib
from benchmarks.soak_criteria import SHORTEST_MINUTES, Growth, audit, growth, read_store
from benchmarks.soak_load import GPUS_PER_NODE, PERIOD_SECONDS, VALUES, Load
from benchmarks.table import Table
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from tests.support.processes import Gpufleet, free_port

FLEET = 66_667
ALLOCATIONS = 20
POLL_SECONDS = 5.0
DRAIN_SECONDS = 120.0
QUERY_SECONDS = 3.0
METRICS = ("gpu_utilization_ratio", "gpu_power_watts")


class Daemon:
    """Running hub or relay, and its recorded memory and CPU."""

    def __init__(self, name: str, folder: Path, *more: str) -> None:
        port = free_port()
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder / name
        self.process = Gpufleet(
            ["hub", "--listen", f"127.0.0.1:{port}", "--state", str(self.folder), *more], folder / f"{name}.log"
        )
        self.resident: list[tuple[float, float]] = []
        self._cpu = 0.0

    def wait(self) -> None:
        """Wait until the daemon answers."""
        self.process.wait_for(f"{self.url}/healthz")

    def record_memory(self) -> None:
        """Record the resident memory."""
        self.resident.append((time.monotonic(), resident_mib(self.process.process.pid)))

    def cpu(self) -> float:
        """Return processor seconds since the last call."""
        now = cpu_seconds(self.process.process.pid)
        used, self._cpu = now - self._cpu, now
        return used


class QueryClient:
    """Client that queries the hub like a dashboard and records latencies in milliseconds."""

    def __init__(self, hub: str, nodes: int) -> None:
        self.spans: dict[str, list[float]] = {}
        self.failed: list[str] = []
        self._hub = hub
        self._nodes = nodes

    async def run(self) -> None:
        """Register allocations, then query until cancelled."""
        async with aiohttp.ClientSession(self._hub, timeout=aiohttp.ClientTimeout(total=60)) as session:
            count = min(ALLOCATIONS, self._nodes)
            for number in range(count):
                target = Target(cluster="local", machine=f"soak-{number * (self._nodes // count):06d}")
                spec = AllocationSpec(kind=AllocationKind.BARE_METAL, target=target)
                async with session.put(f"/v1/allocations/a{number}", data=msgspec.json.encode(spec)) as answer:
                    answer.raise_for_status()
            turn = 0
            while True:
                which = f"/v1/allocations/a{turn % count}"
                await self._query(session, "latest", f"{which}/metrics")
                await self._query(session, "series", f"{which}/series?" + "&".join(f"metric={one}" for one in METRICS))
                await self._query(session, "metrics", "/metrics")
                if turn % 20 == 0:
                    await self._query(session, "senders", "/v1/senders")
                turn += 1
                await asyncio.sleep(QUERY_SECONDS)

    def take(self) -> dict[str, list[float]]:
        """Return sorted latencies since the last call."""
        taken, self.spans = self.spans, {}
        return {name: sorted(spans) for name, spans in taken.items()}

    async def _query(self, session: aiohttp.ClientSession, name: str, path: str) -> None:
        began = time.perf_counter()
        try:
            async with session.get(path) as answer:
                body = await answer.read()
                if answer.status != 200:
                    self.failed.append(f"{path}: {answer.status} {body[:200]!r}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failed.append(f"{path}: {type(error).__name__} {error}")
        self.spans.setdefault(name, []).append((time.perf_counter() - began) * 1e3)


class Soak:
    """Soak run with a hub, relays and load."""

    def __init__(self, folder: Path, *, gpus: int, relays: int, minutes: float) -> None:
        self.folder = folder
        self.minutes = minutes
        self.hub = Daemon("hub", folder)
        self.relays = [Daemon(f"relay-{number}", folder, "--relay-to", self.hub.url) for number in range(1, relays + 1)]
        self.load = Load(gpus, [relay.url for relay in self.relays])
        self.queries = QueryClient(self.hub.url, len(self.load.nodes))
        self.slowest: dict[str, float] = {}
        self.latest_seconds = 0.0
        self._rows = 0.0
        self._began = time.monotonic()

    async def run(self) -> list[str]:
        """Run the soak. Return its errors."""
        for daemon in (self.hub, *self.relays):
            await asyncio.to_thread(daemon.wait)
        print(HEAD, flush=True)
        async with aiohttp.ClientSession() as session:
            posting = asyncio.create_task(self.load.run())
            querying = asyncio.create_task(self.queries.run())
            self._began = time.monotonic()
            minute = self._began
            while time.monotonic() < self._began + self.minutes * 60:
                await asyncio.sleep(POLL_SECONDS)
                if broken := self._broken(posting):
                    for task in (posting, querying):
                        task.cancel()
                    await asyncio.gather(posting, querying, return_exceptions=True)
                    return broken
                for daemon in (self.hub, *self.relays):
                    daemon.record_memory()
                if time.monotonic() - minute >= 60 - POLL_SECONDS / 2:
                    await self._print_progress(session, time.monotonic() - minute)
                    minute = time.monotonic()
            self.load.stop()
            await posting
            drained = await self._drain(session)
            await self._print_progress(session, max(time.monotonic() - minute, 0.1))
            querying.cancel()
            (ended,) = await asyncio.gather(querying, return_exceptions=True)
            if isinstance(ended, Exception):
                self.queries.failed.append(f"the query client ended: {ended!r}")
        return self._judge(drained)

    def _broken(self, posting: asyncio.Task[None]) -> list[str]:
        """Return the errors that abort the run."""
        codes = {daemon.name: daemon.process.process.poll() for daemon in (self.hub, *self.relays)}
        broken = [f"{name} ended with {code} in the middle" for name, code in codes.items() if code is not None]
        if posting.done():
            broken.append(f"the load ended: {posting.exception()!r}")
        return broken

    async def _pages(self, session: aiohttp.ClientSession) -> tuple[str, list[str]]:
        pages = []
        for daemon in (self.hub, *self.relays):
            async with session.get(f"{daemon.url}/metrics") as answer:
                pages.append(await answer.text())
        return pages[0], pages[1:]

    async def _print_progress(self, session: aiohttp.ClientSession, seconds: float) -> None:
        page, relays = await self._pages(session)
        rows = gauge(page, "gpufleet_hub_flushed_rows_total")
        spans = self.queries.take()
        for name, found in spans.items():
            self.slowest[name] = max(found[-1], self.slowest.get(name, 0.0))
        self.latest_seconds = max(self.latest_seconds, self.load.late_seconds)
        print(
            f"{(time.monotonic() - self._began) / 60:6.1f} {(rows - self._rows) / seconds:8,.0f} {rows / 1e6:7.2f}"
            f" {sum(gauge(one, 'gpufleet_relay_wal_records') for one in relays):7.0f}"
            f" {gauge(page, 'gpufleet_hub_wal_records'):7.0f} {gauge(page, 'gpufleet_hub_flush_lag_seconds'):6.1f}"
            f" {self.load.late_seconds:6.1f}"
            f" {self.hub.resident[-1][1]:7.0f} {'+'.join(f'{one.resident[-1][1]:.0f}' for one in self.relays):>9}"
            f" {100 * self.hub.cpu() / seconds:6.0f} {100 * sum(one.cpu() for one in self.relays) / seconds:6.0f}"
            f" {_median(spans.get('latest'))} {_median(spans.get('series'))} {_median(spans.get('senders'))}"
            f" {await asyncio.to_thread(folder_bytes, self.hub.folder) / 2**20:8.0f}",
            flush=True,
        )
        self._rows, self.load.late_seconds = rows, 0.0

    async def _drain(self, session: aiohttp.ClientSession) -> bool:
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            page, relays = await self._pages(session)
            waiting = gauge(page, "gpufleet_hub_wal_records")
            if not waiting and not any(gauge(one, "gpufleet_relay_wal_records") for one in relays):
                return True
            await asyncio.sleep(0.2)
        return False

    def _judge(self, drained: bool) -> list[str]:
        errors = [] if drained else [f"the queues were not drained after {DRAIN_SECONDS:g} s"]
        errors += [f"{self.load.refused} batches were refused"] if self.load.refused else []
        errors += [f"{len(self.queries.failed)} queries failed, the first: {one}" for one in self.queries.failed[:1]]
        if self.latest_seconds > PERIOD_SECONDS:
            errors.append(f"the fleet was up to {self.latest_seconds:.1f} s late")
        for daemon in (*self.relays, self.hub):
            code = daemon.process.stop(seconds=120)
            errors += [f"{daemon.name} ended with {code}"] if code else []
            errors += [f"{daemon.name} logged a traceback"] if "Traceback" in daemon.process.log.read_text() else []
        print("\nreading the store ...", flush=True)
        stored, active_bytes = read_store(f"chdb://{self.hub.folder / 'hub' / 'store'}")
        problems = list(audit({node.epoch: node.acknowledged for node in self.load.nodes}, stored))
        errors += [*problems[:5], f"{len(problems)} epochs are wrong"] if problems else []
        table = Table("soak", "what", "figure")
        rows = self.load.acknowledged * GPUS_PER_NODE
        table.row("acknowledged and stored once", f"{rows:,} rows of {len(self.load.nodes):,} senders")
        table.row("retries", str(self.load.retried))
        table.row("latest bundle", f"{self.latest_seconds:.1f} s after it was due")
        for name, span in self.slowest.items():
            table.row(f"slowest answer: {name}", f"{span:.0f} ms")
        size = folder_bytes(self.hub.folder / "hub" / "store")
        table.row("store on disk", f"{size / 2**20:,.0f} MiB, of these {active_bytes / 2**20:,.0f} in active parts")
        table.row("active parts", f"{active_bytes / max(rows, 1):.1f} B/row of {VALUES} values")
        for daemon in (self.hub, *self.relays):
            found = growth(daemon.resident)
            table.row(f"{daemon.name} resident", _growth_text(found, self.minutes))
            if self.minutes >= SHORTEST_MINUTES and not found.is_flat:
                errors.append(f"{daemon.name} grew by {found.grown:.0f} MiB of {found.mean:.0f}")
        table.print()
        return errors


HEAD = f"""{"":16}{"":8} {"-- backlog --":>15} {"late s":>13} {"resident MiB":>17} {"cpu %":>13} {"median ms":>20}
minute   rows/s  M rows  relays     hub    hub   load     hub    relays    hub relays latest series senders disk MiB"""


def _median(spans: list[float] | None) -> str:
    return f"{spans[len(spans) // 2]:6.0f}" if spans else "     -"


def _growth_text(found: Growth, minutes: float) -> str:
    verdict = "flat" if found.is_flat else "grows"
    judged = verdict if minutes >= SHORTEST_MINUTES else f"not judged under {SHORTEST_MINUTES:g} minutes"
    return f"mean {found.mean:.0f} MiB, slope {found.per_hour:+.0f} MiB/h: {judged}"


def main(argv: list[str] | None = None) -> int:
    """Run and print. Return 1 if the run failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--gpus", type=int, default=FLEET)
    parser.add_argument("--relays", type=int, default=2)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that `finally` ends the daemons
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-soak-"))
    soak = Soak(folder, gpus=options.gpus, relays=options.relays, minutes=options.minutes)
    try:
        errors = asyncio.run(soak.run())
    finally:
        for daemon in (*soak.relays, soak.hub):
            daemon.process.kill()
    if errors:
        print("\nFAILED:", *errors, f"logs and store are kept in {folder}", sep="\n  ")
        return 1
    shutil.rmtree(folder)
    print("\nPASSED: timely, no loss, no duplicates")
    return 0


if __name__ == "__main__":
    sys.exit(main())
