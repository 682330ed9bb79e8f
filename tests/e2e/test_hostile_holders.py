"""Hostile names of pods: from a kubelet over the agent to every surface of agent and hub."""

import asyncio
import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.dialects.l9gpu import NAME as L9GPU
from gpufleet.dialects.registry import DIALECTS
from tests.e2e.conftest import Site
from tests.fakes.kubelet import FakeContainer, FakeKubelet, FakePod, holders_config, node_folder
from tests.fakes.receiver import Receiver, attributes_of, points_of
from tests.support.command import gpufleet
from tests.support.processes import get_json, get_text
from tests.support.remote_write import parse
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

CONFIG = """
node = "node-1"

[lanes]
fast = 1.0
slow = 1.0
static = 5.0

[readers.kmsg]
path = "{folder}/kmsg"

{holders}

[metrics]
dialects = {dialects}
holder_labels = true

[push.otlp]
endpoint = "{receiver}"
dialects = ["otel", "l9gpu"]
interval_seconds = 5.0

[push.remote_write]
url = "{receiver}/write"
interval_seconds = 5.0
dialects = ["gpufleet", "dcgm-exporter"]
"""
NAMES = (
    '\x1b[2J\x07\u202e"} 1\nup 0\n\\' + "x" * 10_000,
    '=HYPERLINK("http://example.com")',
    "@a,b;c'\"`$(id)",
    "<script>document.title='x'</script>",
    "\U0001f680" * 10_000,
    "\0\r\t\x9b\u2028",
)
"""Names of pods, namespaces and containers. Each pod has a GPU, and a device name that identifies none."""

MOST = 320
"""Longest name that the kubelet source keeps, in characters."""

WHOLE = re.compile(rf"([x\U0001f680])\1{{{MOST - 1}}}")
"""A part of a name of 10 kB that is longer than a kept name."""

HOUR = 3600


def check(texts: Iterable[str]) -> None:
    """Check that no text has a character without a shape, or a whole name of 10 kB."""
    for text in texts:
        assert text.isprintable(), ascii(text)
        assert not WHOLE.search(text)


def texts_of(document: Any) -> Iterator[str]:
    """Yield every text of a JSON document."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from (name, *texts_of(value))
    elif isinstance(document, list):
        for value in document:
            yield from texts_of(value)


def place_pods(site: Site, kubelet: FakeKubelet) -> list[str]:
    """Place a pod of each name on a GPU; return the UUIDs."""
    devices = get_json(f"{site.agent_url}/v1/snapshot")["devices"]
    uuids = [str(one["uuid"]) for one in devices[: len(NAMES)]]
    for name, uuid in zip(NAMES, uuids, strict=True):
        container = FakeContainer(name, devices={"nvidia.com/gpu": (uuid, name)})
        kubelet.place(FakePod(name, name, "", (container,)), has_folders=False)
    return uuids


def count_held(devices: Iterable[dict[str, Any]]) -> int:
    return sum(one.get("holders", {}).get("state") == "held" for one in devices)


def report_xids(site: Site, file: Path) -> None:
    """Write an XID of each GPU to the kernel log, as of now."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    with file.open("a") as log:
        for number, device in enumerate(site.driver.scenario.devices, 1):
            address = str(device.texts["nvmlDeviceGetPciInfo"])[4:].lower()
            log.write(f"4,{number},{int(uptime * 1e6)},-;NVRM: Xid (PCI:{address}): 31, pid=7, name=x, text\n")


def check_agent(site: Site, uuid: str) -> None:
    """Check the endpoints of the agent and the commands that show it."""
    check(texts_of(get_json(f"{site.agent_url}/v1/snapshot")))
    page = site.metrics()
    check(page.split("\n"))
    families = {family.name for family in text_string_to_metric_families(page)}
    assert {"gpufleet_gpu_holder_info", "DCGM_FI_DEV_POWER_USAGE", "gpu_utilization"} <= families
    assert "up" not in families
    for command in (("who", "--wide"), ("who", uuid, "--wide"), ("snapshot",), ("why", uuid)):
        done = gpufleet(*command, "--agent", site.agent_url)
        assert done.returncode == 0, done.stderr
        check(line.replace("\t", "") for line in done.stdout.split("\n"))
    check(texts_of(json.loads(gpufleet("who", "--json", "--agent", site.agent_url).stdout)))


def check_hub(site: Site) -> None:
    """Check the answers of the hub as JSON and CSV, its SQL views, and the commands that show them."""
    for path in ("/v1/holders", "/v1/gpus", "/v1/nodes", "/v1/usage?group_by=namespace"):
        check(texts_of(site.hub(path)))
        form = f"{'&' if '?' in path else '?'}format=csv"
        cells = [cell for row in csv.reader(io.StringIO(get_text(site.hub_url + path + form))) for cell in row]
        check(cells)
        assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
    assert len(site.hub("/v1/holders")["items"]) == len(NAMES)
    check(texts_of(site.sql("SELECT * FROM fleet_holders")))
    for command in (("who", "--wide"), ("nodes", "--wide"), ("sql", "SELECT * FROM fleet_holders")):
        done = gpufleet("query", *command, "--hub", site.hub_url)
        assert done.returncode == 0, done.stderr
        check(line.replace("\t", "") for line in done.stdout.split("\n"))


def log_attributes(receiver: Receiver) -> list[dict[str, Any]]:
    """Return the attributes of the received events that name a pod."""
    records = [
        attributes_of(record.attributes)
        for request in receiver.logs()
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    return [one for one in records if "k8s.pod.name" in one]


def series_of(receiver: Receiver) -> list[dict[str, str]]:
    """Return the labels of the received series."""
    return [labels for got in receiver.taken if got.path == "/write" for labels in labels_of(got.body)]


def has_hostile_pod(labels: dict[str, str]) -> bool:
    return labels.get("pod", "").startswith("=HYPERLINK")


def check_pushed(receiver: Receiver) -> None:
    """Check the texts of the newest metrics, and of all events and series, that the agent has pushed."""
    bodies = [got.body for got in receiver.taken if got.path == "/v1/metrics"][-2:]
    points = [point for body in bodies for point in points_of(body)]
    assert [point for point in points if "k8s.pod.name" in point.attributes]
    check({str(text) for point in points for text in point.attributes.values()})
    check(str(text) for one in log_attributes(receiver) for text in one.values())
    series = series_of(receiver)
    assert any(map(has_hostile_pod, series))
    check({text for labels in series for text in labels.values()})


def labels_of(body: bytes) -> list[dict[str, str]]:
    return [{label.name: label.value for label in one.labels} for one in parse(1, body).timeseries]


async def test_hostile_names_are_bounded_and_printable_on_every_surface(site: Site) -> None:
    log = site.folder / "kmsg"
    log.write_text("6,0,0,-;Linux version 6\n")
    with node_folder() as root, FakeKubelet(root) as kubelet:
        at = kubelet.socket.stat().st_mtime - HOUR
        os.utime(kubelet.socket, (at, at))
        async with Receiver.running() as receiver:
            config = CONFIG.format(
                holders=holders_config(root),
                folder=site.folder,
                receiver=receiver.url,
                dialects=json.dumps([*(one.name for one in DIALECTS), L9GPU]),
            )
            (site.folder / "agent.toml").write_text(config)

            def run() -> None:
                site.start_hub()
                site.start_agent()
                uuids = place_pods(site, kubelet)
                shown = f"{site.agent_url}/v1/snapshot"
                wait_until(lambda: count_held(get_json(shown)["devices"]) == len(NAMES), what="the pods on the agent")
                report_xids(site, log)
                wait_until(lambda: count_held(site.hub("/v1/gpus")["items"]) == len(NAMES), what="the pods on the hub")
                wait_until(lambda: len(log_attributes(receiver)) >= len(NAMES), what="the events of the GPUs")
                wait_until(lambda: any(map(has_hostile_pod, series_of(receiver))), what="the series of the pods")
                check_agent(site, uuids[0])
                check_hub(site)
                site.stop()  # each push adds 6 MB to what is checked
                check_pushed(receiver)

            await asyncio.to_thread(run)
