"""Values from the driver to an allocation, also with killed processes and hanging driver calls."""

import random
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE, encode
from tests.e2e.conftest import Site
from tests.fakes.fleet import batch
from tests.support.profiles import examples
from tests.support.subjects import COUNT_SAMPLES, named
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("e2e-allocation")]


def allocate(site: Site) -> None:
    site.put(
        "/v1/allocations/whole",
        {
            "kind": "bare_metal",
            "target": {"cluster": "local", "machine": site.this_machine()["id"]},
            "valid_from": "2020-01-01T00:00:00Z",
        },
    )


def answer(site: Site) -> Any:
    return site.hub("/v1/allocations/whole/metrics")


def reports_all_gpus(site: Site, count: int) -> Callable[[], bool]:
    return lambda: answer(site)["aggregate"]["reporting"] == count


@pytest.fixture(scope="module")
def running(shared: Site) -> Site:
    """Return a running hub and agent, with an allocation of the agent's machine."""
    shared.start_agent()
    allocate(shared)
    return shared


def test_allocation_of_a_machine_has_the_drivers_values(running: Site) -> None:
    wait_until(reports_all_gpus(running, 8), what="eight GPUs in the answer")

    seen = answer(running)

    assert seen["source"] == "host_local_probe"
    assert seen["reason"] is None
    assert seen["aggregate"]["coverage"] == "8 of 8 devices"
    assert seen["host"]["host_memory_total_bytes"]["value"] > 0
    by_uuid = {device["uuid"]: device for device in seen["devices"]}
    for device in running.driver.scenario.devices:
        readings = by_uuid[device.uuid]["readings"]
        watts, percent = (
            device.numbers["nvmlDeviceGetPowerUsage"],
            device.numbers["nvmlDeviceGetUtilizationRates_gpu"],
        )
        assert watts is not None
        assert percent is not None
        assert readings["gpu_power_watts"]["value"] == pytest.approx(watts / 1000)
        assert readings["gpu_utilization_ratio"]["value"] == pytest.approx(percent / 100)
        assert readings["gpu_memory_used_bytes"]["value"] == device.numbers["nvmlDeviceGetMemoryInfo_used"]
        assert readings["gpu_utilization_ratio"]["age_seconds"] >= 0


def test_slice_never_gets_the_hosts_values(running: Site) -> None:
    uuid = running.this_machine()["machine"].get("system_uuid", "0" * 32)
    running.put("/v1/allocations/slice", {"kind": "gpu_slice", "target": {"cluster": "local", "vm_uuid": uuid}})

    seen = running.hub("/v1/allocations/slice/metrics")

    assert (seen["source"], seen["reason"]) == ("unavailable", "guest_not_collected")
    assert (seen["devices"], seen["host"], seen["host_dimensions"]) == ([], {}, [])


def test_hung_call_affects_one_gpu(running: Site) -> None:
    wait_until(reports_all_gpus(running, 8), what="eight GPUs in the answer")
    hung = running.driver.scenario.devices[5].uuid

    running.driver.scenario.hang("nvmlDeviceGetPowerUsage", gpu=5)
    running.driver.apply()
    wait_until(reports_all_gpus(running, 7), seconds=40, what="seven GPUs in the answer")
    seen = answer(running)

    readings = next(device for device in seen["devices"] if device["uuid"] == hung)["readings"]
    assert readings["gpu_power_watts"]["absent"] == "timeout"
    assert "nvmlDeviceGetPowerUsage" in readings["gpu_power_watts"]["detail"]
    assert seen["aggregate"]["metrics"]["gpu_power_watts"]["reporting"] == 7
    page = running.metrics()
    assert len(re.findall(r"^gpufleet_gpu_power_watts\{", page, re.MULTILINE)) == 7
    assert f'uuid="{hung}"' not in "".join(re.findall(r"^gpufleet_gpu_power_watts\{.*$", page, re.MULTILINE))

    running.driver.scenario.faults.clear()
    running.driver.apply()
    wait_until(reports_all_gpus(running, 8), seconds=40, what="eight GPUs again")


@pytest.mark.system
def test_agents_metrics_pass_promtool(running: Site, peer: Callable[[str], Path]) -> None:
    page = running.metrics()

    assert "gpufleet_gpu_power_watts{" in page
    checked = subprocess.run(
        [peer("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False, timeout=60
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_killed_agent_and_hub_lose_and_duplicate_nothing(site: Site) -> None:
    hub, agent = site.start_hub(), site.start_agent()
    allocate(site)
    for _ in range(examples(1, 3)):
        wait_until(lambda: site.hub("/v1/senders"), what="a sender")
        hub.kill()
        wait_until(lambda: queued(site) > 0, what="batches in the agent's queue")
        hub = site.start_hub()
        agent.kill()
        agent = site.start_agent()
    wait_until(lambda: queued(site) == 0, seconds=60, what="the agent's queue to be empty")
    assert agent.stop() == 0
    wait_until(site.drained, what="the hub to have flushed")
    senders = site.hub("/v1/senders")
    assert hub.stop() == 0

    assert [sender["missing"] for sender in senders] == [0] * len(senders)
    ((raw, once),) = site.rows(COUNT_SAMPLES)
    assert raw == once
    assert once > 30
    ((machines,),) = site.rows(f"SELECT uniqExact(machine) FROM {named('samples')}")
    assert machines == 1


def queued(site: Site) -> float:
    line = re.search(r"^gpufleet_spool_records\S* (\S+)$", site.metrics(), re.MULTILINE)
    assert line is not None
    return float(line[1])


def test_acknowledged_batch_is_stored_once_after_a_kill(site: Site) -> None:
    start = time.time_ns() - 3_600_000_000_000
    bodies = [encode(batch(node, step, start_ns=start)) for step in range(30) for node in range(10)]
    acknowledged = [0] * len(bodies)
    turn = iter(range(len(bodies)))
    hub = site.start_hub()

    def post() -> None:
        for index in turn:
            while not acknowledged[index]:
                request = urllib.request.Request(
                    f"{site.hub_url}/v1/batches", data=bodies[index], headers={"Content-Type": CONTENT_TYPE}
                )
                try:
                    with urllib.request.urlopen(request, timeout=10 * PATIENCE) as reply:
                        acknowledged[index] = reply.status
                except urllib.error.HTTPError as error:
                    refused.append(error.code)
                    error.close()
                except OSError:
                    kills.wait(0.05)  # the hub is down and restarts

    kills, refused = threading.Event(), list[int]()
    posters = [threading.Thread(target=post) for _ in range(4)]
    for poster in posters:
        poster.start()
    kill_count = examples(1, 3)
    for number in range(kill_count):
        wanted = len(bodies) * random.uniform(number, number + 0.9) / kill_count
        wait_until(lambda wanted=wanted: sum(map(bool, acknowledged)) > wanted, seconds=60, what="posts")  # type: ignore[misc]
        hub.kill()
        hub = site.start_hub()
    for poster in posters:
        poster.join(timeout=60 * PATIENCE)
    wait_until(site.drained, what="the hub to have flushed")
    assert hub.stop() == 0

    assert set(acknowledged) == {200}
    assert set(refused) <= {503}
    ((raw, once),) = site.rows(COUNT_SAMPLES)
    assert (raw, once) == (len(bodies) * 9, len(bodies) * 9)
