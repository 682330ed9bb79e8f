"""Remote write into the hub by real Prometheus and vmagent processes that scrape a captured page."""

import contextlib
import http.server
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Site
from tests.support.l40s import PAGE, expected
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("e2e-remote-write")]

Peer = Callable[[str], Path]
Writer = Callable[..., list[str]]


class Exporter:
    """HTTP server of a metrics page, by default a captured page of dcgm-exporter."""

    def __init__(self) -> None:
        exporter = self
        self.page = PAGE

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(exporter.page)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name of the base class
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
    )  # a scrape is written in many requests from three queues
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


class Cluster:
    """Cluster of the shared hub, and the writer of its samples."""

    def __init__(self, site: Site, name: str, folder: Path) -> None:
        self.site, self.name, self.log = site, name, folder / "writer.log"
        self._folder = folder
        site.put(f"/v1/clusters/{name}", {})

    @contextlib.contextmanager
    def writing(self, program: Path, writer: Writer, exporter: Exporter, rows: int) -> Iterator[None]:
        """Run a writer that scrapes the exporter and writes to the cluster."""
        url = f"{self.site.hub_url}/api/v1/write?cluster={self.name}"
        command = writer(program, self._folder, exporter.target, url, rows=rows)
        with self.log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)

    def gpus(self) -> list[dict[str, Any]]:
        """Return the hub's GPUs of the cluster."""
        items: list[dict[str, Any]] = self.site.hub(f"/v1/gpus?cluster={self.name}")["items"]
        return items

    def values(self) -> dict[tuple[str, str], Any]:
        """Return the hub's values for the series of the captured page."""
        found, expected_values = {}, expected()
        for one in self.gpus():
            device = one["device"]
            assert device["source"] == "imported"
            for metric, reading in device["readings"].items():
                if (device["uuid"], metric) in expected_values:
                    found[device["uuid"], metric] = reading.get("value")
        return found


@pytest.fixture(params=[prometheus, vmagent], ids=lambda one: one.__name__)
def writer(request: pytest.FixtureRequest) -> Writer:
    chosen: Writer = request.param
    return chosen


def test_values_and_the_end_of_series_arrive(
    shared: Site, peer: Peer, tmp_path: Path, exporter: Exporter, writer: Writer
) -> None:
    cluster = Cluster(shared, f"joins-{writer.__name__}", tmp_path)
    expected_values = expected()
    assert len({uuid for uuid, _ in expected_values}) >= 1
    assert len(expected_values) > 20

    def ended() -> bool:
        values = cluster.values()
        return bool(values) and all(value is None for value in values.values())

    with cluster.writing(peer(writer.__name__), writer, exporter, rows=7):
        wait_until(lambda: cluster.values() == expected_values, seconds=90, what="every value of the page at once")
        exporter.page = b"# nothing\n"  # the exporter lost its GPUs, so its series end
        wait_until(ended, seconds=90, what="the end of its series")
    (sender,) = [one for one in shared.hub("/v1/senders") if one["cluster"] == cluster.name]
    assert (sender["sender"], sender["missing"]) == ("remote_write/prometheus", 0)
    output = cluster.log.read_text()
    assert "non-recoverable" not in output, output[-3000:]


MANY = b"".join(b'm{i="%d"} 1\n' % number for number in range(110_000))
"""Page with more series than a request may have."""


def test_request_that_is_too_large_does_not_block_the_writer(
    shared: Site, peer: Peer, tmp_path: Path, exporter: Exporter, writer: Writer
) -> None:
    cluster = Cluster(shared, f"large-{writer.__name__}", tmp_path)
    refused = 'gpufleet_hub_rejected_batches_total{reason="too_large"}'
    before = shared.hub_metric(refused)
    exporter.page = MANY
    with cluster.writing(peer(writer.__name__), writer, exporter, rows=120_000):
        wait_until(lambda: shared.hub_metric(refused) > before, seconds=90, what="a refusal")
        exporter.page = PAGE
        # Later scrapes are accepted: the refused request does not block the writer's queue.
        wait_until(cluster.gpus, seconds=90, what="the next scrapes")


LABELS = ",".join(f'label_{number}="x"' for number in range(300))
BAD = f'DCGM_FI_DEV_POWER_USAGE{{gpu="7",UUID="GPU-crowded",Hostname="node-a",{LABELS}}} 1\n'.encode()
"""Series that a hub always rejects because of its many labels."""


def test_rejected_series_does_not_affect_the_others(
    shared: Site, peer: Peer, tmp_path: Path, exporter: Exporter, writer: Writer
) -> None:
    cluster = Cluster(shared, f"rejected-{writer.__name__}", tmp_path)
    exporter.page = BAD + PAGE
    expected_values = expected()
    rejected = 'gpufleet_hub_rejected_samples_total{reason="too_many_labels"}'
    before = shared.hub_metric(rejected)
    newest = (-1.0, 0.0)

    def is_quiet() -> bool:
        """Return whether the last five requests had no rejected series."""
        nonlocal newest
        bad, bodies = shared.hub_metric(rejected), shared.hub_metric("gpufleet_hub_received_bodies_total")
        if bad != newest[0]:
            newest = bad, bodies
        return bodies >= newest[1] + 5

    with cluster.writing(peer(writer.__name__), writer, exporter, rows=10_000):
        wait_until(
            lambda: shared.hub_metric(rejected) >= before + 3 and cluster.values() == expected_values,
            seconds=90,
            what="the rest of three scrapes",
        )
        exporter.page = PAGE
        # A series that is sent repeatedly would be counted each time.
        wait_until(lambda: is_quiet() and cluster.values() == expected_values, seconds=90, what="clean requests")
