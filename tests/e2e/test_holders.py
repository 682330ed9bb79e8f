"""GPU holders from pod labels of dcgm-exporter, written by a real Prometheus with and without honor_labels."""

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Site
from tests.support.exporters import serving
from tests.support.processes import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

OWN = "{pod: dcgm-exporter-x7k2p, namespace: gpu-operator, container: exporter}"
QUERY = "SELECT cluster, view, id, share, until IS NULL FROM fleet_holders ORDER BY since, view, id"


def page(*holders: str) -> bytes:
    """Return a page of three GPUs, each held by the pod of this name, or by no pod."""
    lines = []
    for number, name in enumerate(holders):
        held = f'pod="{name}",namespace="ml",container="cuda"' if name else 'pod="",namespace="",container=""'
        labels = f'gpu="{number}",UUID="GPU-{number}",Hostname="node-1",{held}'
        lines += [
            f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {100 + number}",
            f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} {40 + number}",
        ]
    return "\n".join([*lines, ""]).encode()


@contextlib.contextmanager
def scraping(program: Path, folder: Path, exporter: str, url: str, *, honor: bool) -> Iterator[None]:
    """Run a Prometheus that scrapes the exporter and writes to the hub.

    With `honor_labels: true` the target has no pod labels, as documented. If it had, a GPU without a holder would be
    attributed to the exporter's pod.
    """
    labels = "{}" if honor else OWN
    folder.mkdir()
    (folder / "prometheus.yml").write_text(
        f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: dcgm
    honor_labels: {str(honor).lower()}
    static_configs: [{{targets: ["{re.sub("http://|/metrics", "", exporter)}"], labels: {labels}}}]
remote_write: [{{url: "{url}", queue_config: {{batch_send_deadline: 200ms}}}}]
"""
    )
    command = [
        *(str(program), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"),
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait(20)


def test_holder_is_the_workload_not_the_exporter(site: Site, peer: Callable[[str], Path], tmp_path: Path) -> None:
    def held() -> dict[str, list[list[Any]]]:
        rows = site.sql(QUERY)
        return {cluster: [row[1:] for row in rows if row[0] == cluster] for cluster in ("honored", "renamed")}

    hub = site.start_hub()
    for cluster in ("honored", "renamed"):
        site.put(f"/v1/clusters/{cluster}", {})
    with serving(page("train-0", "", "train-1")) as (server, url):
        write, program = f"{site.hub_url}/api/v1/write", peer("prometheus")
        with (
            scraping(program, tmp_path / "honored", url, f"{write}?cluster=honored&pod_labels=workload", honor=True),
            scraping(program, tmp_path / "renamed", url, f"{write}?cluster=renamed", honor=False),
        ):
            begun = [["gpu/GPU-0", "ml/train-0", "exclusive", 1], ["gpu/GPU-2", "ml/train-1", "exclusive", 1]]
            wait_until(lambda: held() == {"honored": begun, "renamed": begun}, seconds=90, what="two holders")
            hub.kill()
            site.start_hub()  # holders are persistent: no new interval begins
            server.page = page("train-0", "train-2", "")
            then = [begun[0], [*begun[1][:3], 0], ["gpu/GPU-1", "ml/train-2", "exclusive", 1]]
            wait_until(lambda: held() == {"honored": then, "renamed": then}, seconds=90, what="a change of holders")
