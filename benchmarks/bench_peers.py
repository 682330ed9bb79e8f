"""CPU and bytes per value, and query latencies, compared with VictoriaMetrics and Prometheus on the same fleet.

Method: 25,000 GPUs x 40 readings every 15 s, `STEPS` steps, the same values at the same times for each system, one
system after another in one run. Each system gets its native protocol: peers get remote write 1.0 with one series per
value and the labels of a scraped exporter, gpufleet gets bundles of agents' batches as a relay sends them. One client
posts as fast as each system accepts. CPU is that of the server process from the first post until it is idle. Bytes
are those of its folder after a request to flush and merge everything: for Prometheus a snapshot, for gpufleet the
active parts, as merged parts stay in the folder for another eight minutes. Series are new in the first step, so their
creation is reported separately.
"""

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.processes import cpu_seconds, folder_bytes, resident_mib
from benchmarks.remote_fleet import NODES_PER_BODY, Body
from benchmarks.soak_load import GPUS_PER_NODE, METRICS, PERIOD_NS, PERIOD_SECONDS, Node
from benchmarks.table import Table
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, BundleAnswer, pack
from tests.support.peers import find
from tests.support.processes import Gpufleet, answers, free_port, get_text
from tests.support.waiting import wait_until

GPUS, STEPS, BUNDLE, REPETITIONS = 25_000, 20, 64, 20
IDLE_SECONDS, IDLE_CPU = 3.0, 0.1
REMOTE_WRITE = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
NODE = 1234


class Figures(NamedTuple):
    """Figures of one system: CPU seconds of the first and the other steps, bytes, MiB, query latencies in ms."""

    first_cpu: float
    cpu: float
    seconds: float
    size: int
    resident: float
    latencies: dict[str, float]


class Post:
    """Client with one persistent connection that retries after a 503."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self._path, self._headers = path, headers

    def __call__(self, body: bytes) -> bytes:
        """Post a body. Return the body of the response.

        Raises:
            RuntimeError: if the server refused it.
        """
        while True:
            self._connection.request("POST", self._path, body, self._headers)
            answer = self._connection.getresponse()
            content = answer.read()
            if answer.status < 300:
                return content
            if answer.status != 503:
                raise RuntimeError(f"{self._path}: {answer.status}: {content[:300]!r}")
            time.sleep(float(answer.headers.get("Retry-After", "0.1")))


def wait_until_idle(pid: int) -> None:
    """Wait until a process is idle."""
    before = cpu_seconds(pid)
    while True:
        time.sleep(IDLE_SECONDS)
        now = cpu_seconds(pid)
        if now - before < IDLE_CPU:
            return
        before = now


def fill(
    pid: int, step: Callable[[int, int], None], start_ns: int, wait_idle: Callable[[], None]
) -> tuple[float, float, float]:
    """Post every step. Return CPU seconds of the first and of the other steps, and the duration of the others."""
    at = [start_ns + number * PERIOD_NS for number in range(STEPS)]
    zero = cpu_seconds(pid)
    step(0, at[0])
    wait_idle()
    first, began = cpu_seconds(pid), time.perf_counter()
    for number in range(1, STEPS):
        step(number, at[number])
    took = time.perf_counter() - began
    wait_idle()
    return first - zero, cpu_seconds(pid) - first, took


def milliseconds(url: str) -> float:
    """Return the median latency of a GET over new connections."""
    spans = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        with urllib.request.urlopen(url, timeout=120) as answer:
            assert answer.read()
        spans.append((time.perf_counter() - began) * 1e3)
    return statistics.median(spans)


@contextmanager
def running(command: list[str], log: Path, ready: str) -> Iterator[int]:
    """Run a peer, and yield its process id."""
    with log.open("wb") as sink, subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT) as process:
        try:
            wait_until(lambda: answers(ready), seconds=60, what=f"{command[0]} to be ready")
            yield process.pid
        finally:
            process.terminate()


def promql(base: str, start_ns: int) -> dict[str, float]:
    """Measure the equivalent PromQL queries."""
    end = start_ns / 1e9 + (STEPS - 1) * PERIOD_SECONDS
    begin = end - (STEPS - 1) * PERIOD_SECONDS
    node = f'node="soak-{NODE:06d}"'

    def query(path: str, **parameters: object) -> float:
        url = f"{base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=120) as answer:
            assert json.load(answer)["data"]["result"], url
        return milliseconds(url)

    return {
        "fleet": query("query", query="count by (cluster) (gpufleet_gpu_power_watts)", time=end),
        "latest": query("query", query="{" + node + "}", time=end),
        "series": query("query_range", query="gpufleet_gpu_power_watts{" + node + "}", start=begin, end=end, step=60),
    }


def victoria(folder: Path, bodies: list[Body], start_ns: int) -> Figures:
    """Measure VictoriaMetrics."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    options = [f"-storageDataPath={folder}/data", f"-httpListenAddr=127.0.0.1:{port}", "-search.latencyOffset=0s"]
    command = [str(find("victoria-metrics")), *options, "-search.disableCache", "-retentionPeriod=10y"]
    with running(command, folder / "log", f"{base}/health") as pid:
        post = Post(port, "/api/v1/write", REMOTE_WRITE)
        cpu = fill(pid, lambda _, at: _post_all(post, bodies, at), start_ns, lambda: wait_until_idle(pid))
        get_text(f"{base}/internal/force_flush")
        latencies = promql(base, start_ns)
        resident = resident_mib(pid)
        get_text(f"{base}/internal/force_merge")
        wait_until_idle(pid)
        return Figures(*cpu, folder_bytes(folder / "data"), resident, latencies)


def prometheus(folder: Path, bodies: list[Body], start_ns: int) -> Figures:
    """Measure Prometheus."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    (folder / "prometheus.yml").write_text("global: {}\n")
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    options += [
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        "--web.enable-admin-api",
    ]
    with running([str(find("prometheus")), *options], folder / "log", f"{base}/-/ready") as pid:
        post = Post(port, "/api/v1/write", REMOTE_WRITE)
        cpu = fill(pid, lambda _, at: _post_all(post, bodies, at), start_ns, lambda: wait_until_idle(pid))
        latencies = promql(base, start_ns)
        resident = resident_mib(pid)
        with urllib.request.urlopen(f"{base}/api/v1/admin/tsdb/snapshot", data=b"", timeout=600) as answer:
            name = json.load(answer)["data"]["name"]
        return Figures(*cpu, folder_bytes(folder / "data" / "snapshots" / name), resident, latencies)


def measure_hub(folder: Path, start_ns: int) -> Figures:
    """Measure a hub."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    nodes = [Node(number) for number in range(GPUS // GPUS_PER_NODE)]
    arguments = ["hub", "--listen", f"127.0.0.1:{port}", "--state", str(folder / "state")]
    with Gpufleet(arguments, folder / "log") as hub:
        hub.wait_for(f"{base}/readyz")
        pid = hub.process.pid
        post = Post(port, "/v1/batches", {"Content-Type": BUNDLE_CONTENT_TYPE})

        def step(number: int, at: int) -> None:
            for first in range(0, len(nodes), BUNDLE):
                some = [node.next_body(at) for node in nodes[first : first + BUNDLE]]
                while some:
                    replies = msgspec.json.decode(post(pack(some)), type=BundleAnswer).answers
                    refused = [one for one in replies if one.status not in (200, 503)]
                    if refused:
                        raise RuntimeError(f"step {number}: {refused[0]}")
                    some = [body for body, one in zip(some, replies, strict=True) if one.status == 503]

        def wait_idle() -> None:
            wait_until(lambda: "\ngpufleet_hub_wal_records 0\n" in get_text(f"{base}/metrics"), seconds=600)
            wait_until_idle(pid)

        cpu = fill(pid, step, start_ns, wait_idle)
        spec = {
            "kind": "bare_metal",
            "target": {"cluster": "local", "machine": f"soak-{NODE:06d}"},
            "valid_from": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start_ns / 1e9 - 60)),
        }
        allocation = f"{base}/v1/allocations/one"
        request = urllib.request.Request(allocation, json.dumps(spec).encode(), method="PUT")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request, timeout=60).close()
        with urllib.request.urlopen(f"{allocation}/metrics", timeout=60) as answer:
            assert json.load(answer)["source"] == "host_local_probe"
        latencies = {
            "fleet": milliseconds(f"{base}/v1/fleet"),
            "latest": milliseconds(f"{allocation}/metrics"),
            "series": milliseconds(f"{allocation}/series?metric=gpu_power_watts&step=60"),
        }
        resident = resident_mib(pid)
        hub.stop()
    return Figures(*cpu, active_bytes(folder / "state" / "hub" / "store"), resident, latencies)


def active_bytes(store: Path) -> int:
    """Return the bytes of a stopped hub's active parts, read in a separate process as the engine must not be forked."""
    script = "import sys; from benchmarks.soak_criteria import read_store; print(read_store(sys.argv[1])[1])"
    done = subprocess.run([sys.executable, "-c", script, f"chdb://{store}"], capture_output=True, text=True, check=True)
    return int(done.stdout)


def _post_all(post: Post, bodies: list[Body], at: int) -> None:
    for body in bodies:
        post(body.at(at // 1_000_000))


def main() -> int:
    """Run and print."""
    nodes = range(GPUS // GPUS_PER_NODE)
    start_ns = (time.time_ns() - 60 * 10**9) // PERIOD_NS * PERIOD_NS - STEPS * PERIOD_NS
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as scratch:
        folders = {name: Path(scratch) / name for name in ("gpufleet", "victoria", "prometheus")}
        for folder in folders.values():
            folder.mkdir()
        found["gpufleet"] = measure_hub(folders["gpufleet"], start_ns)
        bodies = [Body(nodes[first : first + NODES_PER_BODY]) for first in range(0, len(nodes), NODES_PER_BODY)]
        found["VictoriaMetrics"] = victoria(folders["victoria"], bodies, start_ns)
        found["Prometheus"] = prometheus(folders["prometheus"], bodies, start_ns)
    first = GPUS * len(METRICS)
    later = first * (STEPS - 1)
    table = Table(
        f"{GPUS:,} GPUs x {len(METRICS)} values, {STEPS} steps",
        *("system", "us CPU/value", "first value of a series", "accepted, values/s", "bytes/value", "MiB"),
        *("fleet ms", "latest of a node ms", "series of a node ms"),
    )
    for name, one in found.items():
        table.row(
            name,
            f"{one.cpu / later * 1e6:.2f}",
            f"{one.first_cpu / first * 1e6:.2f}",
            f"{later / one.seconds:,.0f}",
            f"{one.size / (first + later):.2f}",
            f"{one.resident:.0f}",
            *(f"{one.latencies[query]:.1f}" for query in ("fleet", "latest", "series")),
        )
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
