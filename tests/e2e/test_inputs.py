"""All inputs of a hub at once, each with its real client: values and their sources.

Configuration blocks are taken from the documentation, with the addresses of the test instead of the examples.
"""

import contextlib
import datetime as dt
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from tests.e2e.conftest import AGENT_CONFIG, Site
from tests.support.exporters import serving
from tests.support.l40s import PAGE, expected
from tests.support.netdata import netdata
from tests.support.processes import Gpufleet, answers, free_port, get_text
from tests.support.tsdb import Tsdb, vmagent
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]

Peer = Callable[[str], Path]
DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = Path(__file__).parents[1] / "data" / "nvidia_smi" / "xml-h100.xml"
CLUSTERS = ("agents", "relayed", "pushed", "east", "west", "written", "otel", "bare")
SDK_GPU = "GPU-00000000-0000-0000-0000-00000000000a"
UUIDS = {uuid for uuid, _ in expected()}


def replaced(page: str, beginning: str, others: Mapping[str, str]) -> str:
    """Return the block of a documentation page that contains `beginning`, with texts replaced."""
    found = [one for one in re.findall(r"```\w+\n(.*?)```", (DOCS / page).read_text(), re.DOTALL) if beginning in one]
    assert len(found) == 1, f"{page}: {len(found)} blocks with {beginning!r}"
    text: str = found[0]
    for example, own in others.items():
        assert example in text, f"{page}: {example!r} is not in the block"
        text = text.replace(example, own)
    return text


@contextlib.contextmanager
def prometheus(program: Path, folder: Path, exporter: str, hub: str) -> Iterator[str]:
    """Run a Prometheus that scrapes an exporter and writes to the hub as documented. Yield its address."""
    folder.mkdir()
    (folder / "token").write_text("not required\n")
    write = replaced(
        "join.md",
        "remote_write:",
        {
            "https://hub.example:8470/api/v1/write": f"{hub}/api/v1/write?cluster=pushed",
            "/etc/prometheus/gpufleet.token": str(folder / "token"),
        },
    )
    port = free_port()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, external_labels: {cluster: not-the-hubs-name}}\n"
        f"scrape_configs: [{{job_name: dcgm, static_configs: [{{targets: ['{exporter}']}}]}}]\n{write}"
    )
    command = [
        *(str(program), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), seconds=60, what="Prometheus to be ready")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(20)


@contextlib.contextmanager
def sdk(hub: str) -> Iterator[None]:
    """Export the power of one GPU every second with the OpenTelemetry SDK."""
    exporter = OTLPMetricExporter(f"{hub}/v1/metrics?cluster=otel")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1000)
    provider = MeterProvider([reader], Resource({"host.name": "sdk-host"}))
    provider.get_meter("test").create_gauge("hw.power", unit="W").set(312.5, {"hw.id": SDK_GPU, "hw.type": "gpu"})
    try:
        yield
    finally:
        provider.shutdown()


def hub_config(site: Site, prometheus: str, netdata: str, exporter: str) -> Path:
    targets = replaced("join.md", "- targets:", {"10.0.0.7:9400": exporter})
    (site.folder / "targets.yml").write_text(targets)
    parts = [
        f"clusters = {list(CLUSTERS)!r}",
        replaced(
            "join.md",
            "[[federation]]",
            {"https://prometheus.east.example:9090": prometheus, "#interval_seconds = 30.0": "interval_seconds = 1.0"},
        ),
        replaced("join.md", "[[discovery]]", {"/etc/gpufleet/targets/*.yml": f"{site.folder}/*.yml"}),
        replaced("netdata.md", "[[netdata]]", {'"local"': '"bare"', "http://node-17:19999": netdata}),
    ]
    file = site.folder / "hub.toml"
    file.write_text("\n".join(parts))
    return file


class Answers:
    """Answers of the hub by cluster."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def gpus(self, cluster: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._site.hub("/v1/gpus?limit=1000")["items"]
        return [one for one in items if one["cluster"] == cluster]

    def has_the_page(self, cluster: str) -> bool:
        """Return whether the hub has every value of the captured page and no other."""
        found = {
            (one["device"]["uuid"], metric): reading.get("value")
            for one in self.gpus(cluster)
            for metric, reading in one["device"]["readings"].items()
        }
        return {key: found.get(key, "nothing") for key in expected()} == expected()

    def has_the_driver(self, cluster: str) -> bool:
        """Return whether the hub has power and memory of the fake driver's eight GPUs."""
        expected_values = {
            (device.uuid, metric): number
            for device in self._site.driver.scenario.devices
            for metric, number in (
                ("gpu_power_watts", (device.numbers["nvmlDeviceGetPowerUsage"] or 0) / 1000),
                ("gpu_memory_used_bytes", device.numbers["nvmlDeviceGetMemoryInfo_used"]),
            )
        }
        found = {
            (one["device"]["uuid"], metric): one["device"]["readings"].get(metric, {}).get("value")
            for one in self.gpus(cluster)
            for metric in ("gpu_power_watts", "gpu_memory_used_bytes")
        }
        return found == expected_values and len(expected_values) == 16

    def origin(self, cluster: str) -> tuple[set[str], set[str], set[str]]:
        """Return nodes, provenances and readers of a cluster's power."""
        power = [(one, one["device"]["readings"].get("gpu_power_watts", {})) for one in self.gpus(cluster)]
        return (
            {one["node"] for one, _ in power},
            {one["device"]["source"] for one, _ in power},
            {reading["reader"] for _, reading in power if "reader" in reading},
        )


def test_hub_receives_from_every_kind_of_client(site: Site, peer: Peer, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        _, page = stack.enter_context(serving(PAGE))
        exporter = page.removeprefix("http://").removesuffix("/metrics")
        prom = stack.enter_context(prometheus(peer("prometheus"), tmp_path / "prom", exporter, site.hub_url))
        host = stack.enter_context(netdata(tmp_path / "netdata", peer("netdata"), DOCUMENT))
        site.start_hub("--config", str(hub_config(site, prom, host, exporter)))
        stack.enter_context(
            vmagent(peer("vmagent"), tmp_path / "vmagent", exporter, Tsdb(site.hub_url), query="?cluster=written")
        )
        stack.enter_context(sdk(site.hub_url))
        relay_port = free_port()
        (tmp_path / "relay.toml").write_text('clusters = ["relayed"]\n')
        relay = Gpufleet(
            [
                *("hub", "--config", str(tmp_path / "relay.toml"), "--listen", f"127.0.0.1:{relay_port}"),
                *("--state", str(tmp_path / "relay"), "--relay-to", site.hub_url),
            ],
            tmp_path / "relay.log",
        )
        stack.callback(relay.stop)
        relay.wait_for(f"http://127.0.0.1:{relay_port}/readyz")
        for number, (cluster, to) in enumerate(
            (("agents", site.hub_url), ("relayed", f"http://127.0.0.1:{relay_port}")), 1
        ):
            file = tmp_path / f"{cluster}.toml"
            file.write_text(AGENT_CONFIG.replace("node-1", f"node-{number}"))
            arguments = [
                *("agent", "--config", str(file), "--hub", to, "--cluster", cluster),
                *("--listen", f"127.0.0.1:{free_port()}", "--state", str(tmp_path / cluster)),
            ]
            stack.callback(Gpufleet(arguments, tmp_path / f"{cluster}.log", site.driver.environment).stop)

        answered = Answers(site)
        for cluster in ("pushed", "east", "west", "written"):
            wait_until(partial(answered.has_the_page, cluster), seconds=120, what=f"the page in {cluster}")
        for cluster in ("agents", "relayed"):
            wait_until(partial(answered.has_the_driver, cluster), seconds=120, what=f"GPUs of {cluster}")

        def exported() -> bool:
            found = [one["device"]["readings"].get("gpu_power_watts", {}).get("value") for one in answered.gpus("otel")]
            return found == [312.5]

        wait_until(exported, seconds=60, what="the power exported by the SDK")

        def collected() -> bool:
            readings = [one["device"]["readings"] for one in answered.gpus("bare")]
            return [one.get("gpu_sm_clock_hertz", {}).get("value") for one in readings] == [345_000_000] * 8

        wait_until(collected, seconds=120, what="eight GPUs through Netdata")

        named = next(line for line in PAGE.decode().splitlines() if line.startswith("DCGM"))
        own = re.search(r'Hostname="([^"]+)"', named)
        assert own is not None
        imported = {"imported"}
        assert {cluster: answered.origin(cluster) for cluster in CLUSTERS} == {
            "agents": ({"node-1"}, {"host_local_probe"}, {"nvml"}),
            "relayed": ({"node-2"}, {"host_local_probe"}, {"nvml"}),
            "pushed": ({own[1]}, imported, {"remote_write/dcgm-exporter"}),
            "written": ({own[1]}, imported, {"remote_write/dcgm-exporter"}),
            "east": ({own[1]}, imported, {"federate/dcgm-exporter"}),
            "west": ({"gpu-7"}, imported, {"exporter/exporter"}),
            "otel": ({"sdk-host"}, imported, {"otlp"}),
            "bare": ({"node-17"}, {"host_netdata"}, {"netdata"}),
        }
        for one in site.hub("/v1/gpus?limit=1000")["items"]:
            measured, received = (dt.datetime.fromisoformat(one[at]) for at in ("measured_at", "received_at"))
            assert one["age_seconds"] < 120, one
            assert dt.timedelta(seconds=-5) < received - measured < dt.timedelta(seconds=90), one
        states = {(one["cluster"], one["sender"]): one["liveness"]["state"] for one in site.hub("/v1/senders")}
        assert (
            states.pop(("east", "exporter/exporter/gpu-1")) == "never_seen"
        )  # targets of the documentation without an exporter
        assert states.pop(("east", "exporter/exporter/gpu-2")) == "never_seen"
        assert set(states.values()) == {"live"}, states
        assert {cluster for cluster, _ in states} == set(CLUSTERS)
        figures = get_text(f"{site.hub_url}/metrics")
        assert "gpufleet_hub_rejected_samples_total{reason=" not in figures
        assert "gpufleet_hub_quarantined_batches_total{" not in figures
