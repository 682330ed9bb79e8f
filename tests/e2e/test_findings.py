"""Findings of a hub process, delivered to a real Alertmanager over a SIGKILL of the hub."""

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import CONTENT_TYPE, encode
from tests.e2e.conftest import Site
from tests.fakes import fleet
from tests.support.alertmanager import alertmanager
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RULE = "gpu.row_remap_failed"

CONFIG = """
[findings]
interval_seconds = 10
link = "https://gpufleet.example"

[findings.rules."{rule}"]
closing_seconds = 0

[[findings.alertmanager]]
name = "test"
urls = ["{url}"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.stop()


def post(site: Site, step: int, *, failed: int) -> None:
    """Post a report of a node; the memory of its first GPU has this state."""
    batch = fleet.batch(0, step, start_ns=time.time_ns() - step * fleet.STEP_NS)
    (report,) = batch.reports
    first, *others = report.samples
    first = msgspec.structs.replace(first, values={**first.values, "gpu_row_remap_failed": failed})
    report = msgspec.structs.replace(report, samples=(first, *others))
    content = encode(msgspec.structs.replace(batch, reports=(report,)))
    request = urllib.request.Request(f"{site.hub_url}/v1/batches", data=content, headers={"Content-Type": CONTENT_TYPE})
    with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
        assert answer.status == 200


def test_alert_resolves_although_the_hub_was_killed(site: Site, tmp_path: Path, peer: Callable[[str], Path]) -> None:
    unused = f"http://127.0.0.1:{free_port()}"
    with alertmanager(peer("alertmanager"), tmp_path / "am", unused) as receiver:
        (tmp_path / "hub.toml").write_text(CONFIG.format(rule=RULE, url=receiver.url))
        hub = site.start_hub("--config", str(tmp_path / "hub.toml"))
        post(site, 0, failed=1)
        wait_until(receiver.alerts, seconds=60, what="the alert")
        hub.kill()
        (alert,) = receiver.alerts()
        assert alert["labels"]["rule"] == RULE
        assert alert["labels"]["node"] == "node-000000"
        assert alert["generatorURL"] == f"https://gpufleet.example/ui/#/findings/{alert['annotations']['finding']}"
        site.start_hub("--config", str(tmp_path / "hub.toml"))
        post(site, 1, failed=0)
        wait_until(lambda: not receiver.alerts(), seconds=60, what="the end of the alert")
        statement = "SELECT kind, id FROM fleet_finding_transitions ORDER BY at"
        wait_until(lambda: len(site.sql(statement)) == 2, what="both transitions in the store")
        assert [kind for kind, _ in site.sql(statement)] == ["opened", "closed"]
        (finding,) = site.hub("/v1/findings?state=closed")["items"]
        assert {finding["id"]} == {id_ for _, id_ in site.sql(statement)} == {alert["annotations"]["finding"]}
