"""A cluster that has Prometheus and dcgm-exporter joins by one `remote_write` block: real writers, a captured page."""

import http.server
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Way
from tests.support.l40s import PAGE, expected
from tests.support.processes import Gpufleet, free_port, get_text
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


class Exporter:
    """Serves the page, as dcgm-exporter did."""

    def __init__(self) -> None:
        exporter = self
        self.page = PAGE

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(exporter.page)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name for it
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.server.shutdown()
    exporter.server.server_close()


def prometheus(program: Path, folder: Path, target: str, url: str, rows: int = 7) -> list[str]:
    config, shards = folder / "prometheus.yml", 3 if rows < 1000 else 1
    config.write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: dcgm
    static_configs: [{{targets: ["{target}"]}}]
remote_write:
  - url: "{url}"
    queue_config: {{max_samples_per_send: {rows}, capacity: {4 * rows}, min_shards: {shards}, max_shards: {shards},
                   batch_send_deadline: 200ms}}
"""
    )  # a scrape comes in many requests, of three queues at once
    return [
        str(program),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]


def vmagent(program: Path, folder: Path, target: str, url: str, rows: int = 7) -> list[str]:
    config = folder / "vmagent.yml"
    config.write_text(
        f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: dcgm
    static_configs: [{{targets: ["{target}"]}}]
"""
    )
    return [
        str(program),
        f"-promscrape.config={config}",
        f"-remoteWrite.tmpDataPath={folder / 'queue'}",
        f"-remoteWrite.url={url}",
        f"-remoteWrite.maxRowsPerBlock={rows}",
        "-remoteWrite.maxBlockSize=64MB",
        "-promscrape.maxScrapeSize=64MB",
        "-remoteWrite.flushInterval=200ms",
        f"-httpListenAddr=127.0.0.1:{free_port()}",
    ]


@pytest.mark.parametrize("writer", [prometheus, vmagent])
def test_it_joins_and_its_end_is_seen(
    way: Way,
    peer: Callable[[str], Path],
    tmp_path: Path,
    exporter: Exporter,
    writer: Callable[..., list[str]],
) -> None:
    arguments = ["hub", "--listen", f"127.0.0.1:{way.hub_port}", "--state", str(way.state)]
    hub = Gpufleet(arguments, tmp_path / "hub.log")
    wanted = expected()
    assert len({uuid for uuid, _ in wanted}) >= 1
    assert len(wanted) > 20

    def told() -> dict[tuple[str, str], Any]:
        found = {}
        for one in way.hub("/v1/gpus")["items"]:
            device = one["device"]
            assert device["source"] == "imported"
            for metric, reading in device["readings"].items():
                if (device["uuid"], metric) in wanted:
                    found[device["uuid"], metric] = reading.get("value")
        return found

    def ends() -> bool:
        return bool(told()) and all(value is None for value in told().values())

    log = tmp_path / "writer.log"
    try:
        hub.wait_for(f"{way.hub_url}/readyz")
        command = writer(peer(writer.__name__), tmp_path, exporter.target, f"{way.hub_url}/api/v1/write")
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait_until(lambda: told() == wanted, seconds=90, what="every value of the page at once")
            exporter.page = b"# nothing\n"  # the exporter lost its GPUs: its series end
            wait_until(ends, seconds=90, what="the end of its series")
        finally:
            process.terminate()
            process.wait(20)
        (sender,) = way.hub("/v1/senders")
        assert (sender["sender"], sender["missing"]) == ("remote_write/prometheus", 0)
    finally:
        hub.stop()
    words = log.read_text()
    assert "non-recoverable" not in words, words[-3000:]


MANY = b"".join(b'm{i="%d"} 1\n' % number for number in range(110_000))
"""More series than a request may have, where its writer puts them into one."""


@pytest.mark.parametrize("writer", [prometheus, vmagent])
def test_what_is_never_taken_is_not_sent_for_ever(
    way: Way, peer: Callable[[str], Path], tmp_path: Path, exporter: Exporter, writer: Callable[..., list[str]]
) -> None:
    exporter.page = MANY
    arguments = ["hub", "--listen", f"127.0.0.1:{way.hub_port}", "--state", str(way.state)]
    hub = Gpufleet(arguments, tmp_path / "hub.log")
    refused = 'gpufleet_hub_rejected_batches_total{reason="too_large"}'
    try:
        hub.wait_for(f"{way.hub_url}/readyz")
        command = writer(peer(writer.__name__), tmp_path, exporter.target, f"{way.hub_url}/api/v1/write", rows=120_000)
        with (tmp_path / "writer.log").open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait_until(lambda: refused in get_text(f"{way.hub_url}/metrics"), seconds=90, what="a refusal")
            exporter.page = PAGE
            # What came after it is taken: nothing stands in the writer's queue before it.
            wait_until(lambda: bool(way.hub("/v1/gpus")["items"]), seconds=90, what="the next scrapes")
        finally:
            process.terminate()
            process.wait(20)
    finally:
        hub.stop()


CROWD = ",".join(f'label_{number}="x"' for number in range(300))
BAD = f'DCGM_FI_DEV_POWER_USAGE{{gpu="7",UUID="GPU-crowded",Hostname="node-a",{CROWD}}} 1\n'.encode()
"""A series that a hub never takes, for its many labels."""


@pytest.mark.parametrize("writer", [prometheus, vmagent])
def test_a_series_that_is_never_taken_costs_those_beside_it_nothing(
    way: Way, peer: Callable[[str], Path], tmp_path: Path, exporter: Exporter, writer: Callable[..., list[str]]
) -> None:
    exporter.page = BAD + PAGE
    arguments = ["hub", "--listen", f"127.0.0.1:{way.hub_port}", "--state", str(way.state)]
    hub = Gpufleet(arguments, tmp_path / "hub.log")
    wanted = expected()

    def told() -> dict[tuple[str, str], Any]:
        return {
            (one["device"]["uuid"], metric): reading.get("value")
            for one in way.hub("/v1/gpus")["items"]
            for metric, reading in one["device"]["readings"].items()
            if (one["device"]["uuid"], metric) in wanted
        }

    def count(name: str) -> float:
        lines = get_text(f"{way.hub_url}/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    unwritten = 'gpufleet_hub_unwritten_samples_total{reason="too_many_labels"}'
    newest = (-1.0, 0.0)

    def is_quiet() -> bool:
        """Whether the last five requests had nothing that cannot be taken."""
        nonlocal newest
        bad, bodies = count(unwritten), count("gpufleet_hub_received_bodies_total")
        if bad != newest[0]:
            newest = bad, bodies
        return bodies >= newest[1] + 5

    try:
        hub.wait_for(f"{way.hub_url}/readyz")
        command = writer(peer(writer.__name__), tmp_path, exporter.target, f"{way.hub_url}/api/v1/write", rows=10_000)
        with (tmp_path / "writer.log").open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait_until(lambda: count(unwritten) >= 3 and told() == wanted, seconds=90, what="the rest of three scrapes")
            exporter.page = PAGE
            # One that is sent again and again would count each time.
            wait_until(lambda: is_quiet() and told() == wanted, seconds=90, what="requests without it alone")
        finally:
            process.terminate()
            process.wait(20)
    finally:
        hub.stop()
