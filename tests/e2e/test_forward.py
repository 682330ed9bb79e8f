"""Forwarding from the hub to real databases: values at their own time, and outages of both sides."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gpufleet.dashboards.native import native_dashboard
from tests.e2e.conftest import Site
from tests.support.dashboard_queries import query_of_all
from tests.support.processes import Gpufleet, free_port
from tests.support.subjects import named
from tests.support.tsdb import Tsdb, prometheus, victoria
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

Peer = Callable[[str], Path]
ONLY_AGENTS = {"Absent readings by reason", "Failing readers", "Age of measurements"}
"""Panels of the overview with series of the agents' pages, which a hub does not forward."""

JOB = 'job="gpufleet",forwarded_by="gpufleet"'


def start_hub(site: Site, url: str, *more: str) -> Gpufleet:
    config = site.folder / "hub.toml"
    lines = ["[forward]", f'url = "{url}"', 'labels = ["fleet=lab"]', *more]
    config.write_text("\n".join([*lines, ""]))
    return site.start_hub("--config", str(config))


def figure(site: Site, name: str) -> float:
    return site.hub_metric(f"gpufleet_hub_forward_{name} ")


def watts(site: Site) -> dict[str, float]:
    """Return the driver's values by UUID."""
    found = {device.uuid: device.numbers["nvmlDeviceGetPowerUsage"] for device in site.driver.scenario.devices}
    return {uuid: number / 1000 for uuid, number in found.items() if number is not None}


def power(database: Tsdb) -> dict[str, float]:
    query = f'gpufleet_gpu_power_watts{{{JOB},reader="nvml",cluster="local",node="node-1",fleet="lab"}}'
    return {one.labels["uuid"]: one.value for one in database.now(query)}


def test_prometheus_has_the_hubs_values(site: Site, peer: Peer) -> None:
    """Debian's Prometheus accepts remote write 1.0 only: the hub falls back from 2.0."""
    with prometheus(peer("prometheus"), site.folder / "prometheus") as database:
        hub = start_hub(site, database.write_url, 'version = "2.0"')
        site.start_agent()
        wait_until(lambda: power(database) == watts(site), seconds=90, what="the power of eight GPUs")
        (one,) = site.hub("/v1/nodes")["items"]
        machines = {sample.labels["machine"] for sample in database.now(f"gpufleet_gpu_power_watts{{{JOB}}}")}
        assert machines == {one["machine"]["id"]}
        wait_until(lambda: figure(site, "accepted_points_total") > 1000, seconds=60, what="a thousand points")
        assert figure(site, "rejected_points_total") == 0
        assert figure(site, "lost_batches_total") == 0
        assert hub.stop() == 0


def test_backlog_survives_database_outage_and_hub_kill(site: Site, peer: Peer) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/api/v1/write"
    hub = start_hub(site, url, 'late = "send"')
    site.start_agent()
    wait_until(
        lambda: figure(site, "failures_total") >= 1 and figure(site, "queue_requests") >= 5,
        seconds=90,
        what="a backlog",
    )
    hub.kill()
    hub = start_hub(site, url, 'late = "send"')
    try:
        with victoria(peer("victoria-metrics"), site.folder / "victoria", port) as database:
            wait_until(
                lambda: power(database) == watts(site) and figure(site, "queue_requests") == 0,
                seconds=90,
                what="the backlog",
            )
            rows = {round(one.at, 3) for one in database.raw(f'gpufleet_gpu_power_watts{{{JOB},reader="nvml"}}')}
            site.stop()
    finally:
        hub.kill()
    query = (
        f"SELECT DISTINCT toUnixTimestamp64Milli(measured_at) FROM {named('samples')} "
        "WHERE reader = 'nvml' AND gpu_power_watts IS NOT NULL"
    )
    stored = {row[0] / 1000 for row in site.rows(query)}
    assert len(rows) > 5
    assert rows <= stored  # at the time of measurement
    assert {at for at in stored if at <= max(rows)} == rows  # and none is missing


def test_simulated_fleet_is_charted_through_a_database(site: Site, peer: Peer) -> None:
    """The overview of the native dashboard has data for a fleet that the hub forwards."""
    panels = [panel for panel in native_dashboard().rows[0].panels if panel.title not in ONLY_AGENTS]
    queries = [query_of_all(query.expression, "5m") for panel in panels for query in panel.queries]
    with prometheus(peer("prometheus"), site.folder / "prometheus") as database:
        start_hub(site, database.write_url)
        fleet = ["--clusters", "2", "--nodes", "8", "--gpus", "2"]
        fleet += ["--faults", "hot-gpu@+1m/10m:c1/n1/g0,xid=31@+2m:c1/n1/g1"]
        times = ["--start", "4m", "--duration", "4m", "--speed", "40", "--hub", site.hub_url]
        command = [sys.executable, "-m", "gpufleet.cli.main", "simulate", "fleet", *fleet, *times]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        # The queue is also empty before the hub forwards its newest samples.
        for query in queries:
            wait_until(partial(database.query, query), seconds=60, what=f"data for {query}")
