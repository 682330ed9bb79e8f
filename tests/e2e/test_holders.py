"""Who holds a GPU, out of dcgm-exporter's labels as a real Prometheus passes them on, in both of its ways."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Way
from tests.support.exporters import serving
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

OWN = "{pod: dcgm-exporter-x7k2p, namespace: gpu-operator, container: exporter}"
QUERY = "SELECT view, id, share, until IS NULL FROM fleet_holders ORDER BY since, view, id"


def page(*holders: str) -> bytes:
    """Return a page of three GPUs of which each is held by a pod of this name, or by none."""
    lines = []
    for number, name in enumerate(holders):
        held = f'pod="{name}",namespace="ml",container="cuda"' if name else 'pod="",namespace="",container=""'
        labels = f'gpu="{number}",UUID="GPU-{number}",Hostname="node-1",{held}'
        lines += [
            f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {100 + number}",
            f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} {40 + number}",
        ]
    return "\n".join([*lines, ""]).encode()


@pytest.mark.parametrize("honor", [False, True])
def test_the_workloads_pod_holds_it_and_never_the_exporters(
    way: Way, peer: Callable[[str], Path], tmp_path: Path, honor: bool
) -> None:
    query = "?pod_labels=workload" if honor else ""

    def start() -> Gpufleet:
        arguments = ["hub", "--listen", f"127.0.0.1:{way.hub_port}", "--state", str(way.state)]
        hub = Gpufleet(arguments, tmp_path / "hub.log")
        hub.wait_for(f"{way.hub_url}/readyz")
        return hub

    def held() -> list[list[Any]]:
        question = urllib.request.Request(
            f"{way.hub_url}/v1/query",
            data=json.dumps({"sql": QUERY}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(question, timeout=20) as answer:
            rows: list[list[Any]] = json.load(answer)["rows"]
            return rows

    hub = start()
    with serving(page("train-0", "", "train-1")) as (server, url):
        # With labels of its own pod, and `honor_labels: true`, a GPU that nobody holds would be held by the exporter:
        # who sets it drops those labels of the target, as the documentation says.
        labels = "{}" if honor else OWN
        (tmp_path / "prometheus.yml").write_text(
            f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: dcgm
    honor_labels: {str(honor).lower()}
    static_configs: [{{targets: ["{re.sub("http://|/metrics", "", url)}"], labels: {labels}}}]
remote_write: [{{url: "{way.hub_url}/api/v1/write{query}", queue_config: {{batch_send_deadline: 200ms}}}}]
"""
        )
        command = [
            *(
                str(peer("prometheus")),
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/tsdb",
            ),
            f"--web.listen-address=127.0.0.1:{free_port()}",
        ]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            begun = [["gpu/GPU-0", "ml/train-0", "exclusive", 1], ["gpu/GPU-2", "ml/train-1", "exclusive", 1]]
            wait_until(lambda: held() == begun, seconds=90, what="two holders")
            hub.kill()
            hub = start()  # who held what is remembered: nobody begins anew
            server.page = page("train-0", "train-2", "")
            then = [begun[0], [*begun[1][:3], 0], ["gpu/GPU-1", "ml/train-2", "exclusive", 1]]
            wait_until(lambda: held() == then, seconds=90, what="one to have gone and another to have come")
        finally:
            process.kill()
            process.wait(20)
            hub.stop()
