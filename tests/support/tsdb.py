"""Real Prometheus, VictoriaMetrics and vmagent on loopback, in their own folders."""

import contextlib
import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.processes import answers, free_port
from tests.support.waiting import PATIENCE, wait_until

SCRAPE = """
global:
  scrape_interval: {seconds}s
  scrape_timeout: {seconds}s
scrape_configs:
- job_name: scraped
  metrics_path: /metrics
  static_configs:
  - targets: ["{target}"]
"""


class Sample(NamedTuple):
    """Sample of a series."""

    labels: dict[str, str]
    value: float
    at: float


class Tsdb(NamedTuple):
    """Database that answers PromQL and receives remote write."""

    url: str

    @property
    def write_url(self) -> str:
        """URL of the remote write endpoint."""
        return f"{self.url}/api/v1/write"

    def query(self, promql: str) -> list[Any]:
        """Return the result of an instant query; fail with the error message of the database."""
        body = urllib.parse.urlencode({"query": promql}).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query", data=body, timeout=10 * PATIENCE) as answer:
                result: list[Any] = json.load(answer)["data"]["result"]
                return result
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{promql}: {error.read().decode()}") from error

    def now(self, promql: str) -> list[Sample]:
        """Return the samples of an instant query."""
        return [Sample(one["metric"], float(one["value"][1]), float(one["value"][0])) for one in self.query(promql)]

    def raw(self, selector: str) -> list[Sample]:
        """Return every sample of the last hour with its own timestamp."""
        return [
            Sample(one["metric"], float(value), float(at))
            for one in self.query(f"{selector}[1h]")
            for at, value in one["values"]
        ]


@contextlib.contextmanager
def prometheus(
    program: Path, folder: Path, target: str = "127.0.0.1:1", rules: str = "", seconds: int = 1
) -> Iterator[Tsdb]:
    """Run a Prometheus that receives remote write, scrapes `target` every so many seconds and evaluates a rule file."""
    port = free_port()
    folder.mkdir(parents=True)
    (folder / "rules.yml").write_text(rules or "groups: []")
    (folder / "prometheus.yml").write_text(SCRAPE.format(target=target, seconds=seconds) + "rule_files: [rules.yml]\n")
    command = [
        str(program),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        "--enable-feature=promql-at-modifier",
    ]
    url = f"http://127.0.0.1:{port}"
    with _running(command, folder / "log", f"{url}/-/ready"):
        yield Tsdb(url)


@contextlib.contextmanager
def victoria(program: Path, folder: Path, port: int | None = None) -> Iterator[Tsdb]:
    """Run a VictoriaMetrics, on a free port unless one is given."""
    port = port or free_port()
    folder.mkdir(parents=True)
    command = [
        str(program),
        f"-storageDataPath={folder}/data",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=0s",
        "-search.disableCache",
        "-retentionPeriod=10y",
        "-memory.allowedBytes=256MB",
    ]
    url = f"http://127.0.0.1:{port}"
    with _running(command, folder / "log", f"{url}/health"):
        yield Tsdb(url)


@contextlib.contextmanager
def vmagent(program: Path, folder: Path, target: str, to: Tsdb, query: str = "") -> Iterator[None]:
    """Run a vmagent that scrapes `target` every second and writes to a database or a hub."""
    port = free_port()
    folder.mkdir(parents=True)
    (folder / "scrape.yml").write_text(SCRAPE.format(target=target, seconds=1))
    command = [
        str(program),
        f"-promscrape.config={folder}/scrape.yml",
        f"-remoteWrite.url={to.write_url}{query}",
        f"-remoteWrite.tmpDataPath={folder}/data",
        "-remoteWrite.flushInterval=1s",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-memory.allowedBytes=128MB",
    ]
    with _running(command, folder / "log", f"http://127.0.0.1:{port}/health"):
        yield


@contextlib.contextmanager
def _running(command: list[str], log: Path, ready: str, env: Mapping[str, str] | None = None) -> Iterator[None]:
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=env)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, f"{command[0]} ended:\n{log.read_text()[-3000:]}"
            return answers(ready)

        wait_until(is_ready, seconds=40, what=f"{command[0]} to be ready")
        yield
    finally:
        process.kill()
        process.wait(timeout=20 * PATIENCE)
