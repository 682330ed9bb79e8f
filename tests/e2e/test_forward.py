"""What the hub takes in, passed on to real databases: every value at its own time, over outages of either side."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Way
from tests.support.processes import Gpufleet, free_port, get_text
from tests.support.tsdb import Tsdb, prometheus, victoria
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

Peer = Callable[[str], Path]
JOB = 'job="gpufleet",forwarded_by="gpufleet"'


def start_hub(way: Way, url: str, *more: str) -> Gpufleet:
    config = way.folder / "hub.toml"
    lines = ["[forward]", f'url = "{url}"', 'labels = ["fleet=lab"]', *more]
    config.write_text("\n".join([*lines, ""]))
    arguments = ["hub", "--config", str(config), "--listen", f"127.0.0.1:{way.hub_port}", "--state", str(way.state)]
    hub = Gpufleet(arguments, way.folder / "hub.log")
    hub.wait_for(f"{way.hub_url}/readyz")
    return hub


def figure(way: Way, name: str) -> float:
    lines = get_text(f"{way.hub_url}/metrics").splitlines()
    return next((float(one.split()[-1]) for one in lines if one.startswith(f"gpufleet_hub_forward_{name} ")), 0.0)


def watts(way: Way) -> dict[str, float]:
    """Return what the driver says, by UUID."""
    found = {device.uuid: device.numbers["nvmlDeviceGetPowerUsage"] for device in way.driver.scenario.devices}
    return {uuid: number / 1000 for uuid, number in found.items() if number is not None}


def power(database: Tsdb) -> dict[str, float]:
    query = f'gpufleet_gpu_power_watts{{{JOB},reader="nvml",cluster="local",node="node-1",fleet="lab"}}'
    return {one.labels["uuid"]: one.value for one in database.now(query)}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_prometheus_has_what_the_hub_has(way: Way, peer: Peer, version: str) -> None:
    """Debian's Prometheus speaks 1.0 alone: a hub that is told 2.0 falls back."""
    with prometheus(peer("prometheus"), way.folder / "prometheus") as database:
        hub = start_hub(way, database.write_url, f'version = "{version}"')
        try:
            way.start_agent()
            wait_until(lambda: power(database) == watts(way), seconds=90, what="the power of eight GPUs")
            (one,) = way.hub("/v1/nodes")["items"]
            machines = {sample.labels["machine"] for sample in database.now(f"gpufleet_gpu_power_watts{{{JOB}}}")}
            assert machines == {one["machine"]["id"]}
            wait_until(lambda: figure(way, "taken_points_total") > 1000, seconds=60, what="a thousand points")
            assert figure(way, "rejected_points_total") == 0
            assert figure(way, "lost_batches_total") == 0
        finally:
            hub.stop()


def test_what_was_taken_in_while_the_database_was_down_and_the_hub_was_killed_is_there(way: Way, peer: Peer) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/api/v1/write"
    hub = start_hub(way, url, 'late = "send"')
    way.start_agent()
    wait_until(
        lambda: figure(way, "failures_total") >= 1 and figure(way, "waiting_requests") >= 5,
        seconds=90,
        what="requests to wait for a database that is down",
    )
    hub.kill()
    hub = start_hub(way, url, 'late = "send"')
    try:
        with victoria(peer("victoria-metrics"), way.folder / "victoria", port) as database:
            wait_until(
                lambda: power(database) == watts(way) and figure(way, "waiting_requests") == 0,
                seconds=90,
                what="everything that waited",
            )
            rows = {round(one.at, 3) for one in database.raw(f'gpufleet_gpu_power_watts{{{JOB},reader="nvml"}}')}
            way.stop()
    finally:
        hub.kill()
    query = (
        "SELECT DISTINCT toUnixTimestamp64Milli(measured_at) FROM samples "
        "WHERE reader = 'nvml' AND gpu_power_watts IS NOT NULL"
    )
    stored = {row[0] / 1000 for row in way.rows(query)}
    assert len(rows) > 5
    assert rows <= stored  # at the times of their measurements
    assert {at for at in stored if at <= max(rows)} == rows  # and not one is missing
