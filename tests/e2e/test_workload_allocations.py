"""Allocations of a pod and of a job: from the kubelet or a real SLURM over the agent to the hub's answer."""

import os
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import Site
from tests.fakes.kubelet import KUBELET, FakeContainer, FakeKubelet, FakePod, node_folder
from tests.support import peers
from tests.support.command import gpufleet
from tests.support.libvirt import lacking
from tests.support.processes import get_json
from tests.support.slurm import Node, Slurm, slurm
from tests.support.tsdb import prometheus
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("e2e-workloads")]

CONFIG = """
node = "node-1"

[lanes]
fast = 1.0
slow = 2.0
static = 5.0

[readers.host]
k8s_node_name = "gpu-1"
k8s_node_uid = "5c1b7a2e-8f4d-4f0a-9a55-0d4b8a1e2f30"

[holders]
interval_seconds = 1.0

[holders.libvirt]
enabled = false
"""
KUBELET_CONFIG = """
[holders.kubelet]
folder = "{root}/{kubelet}"
pod_logs = "{root}/var/log/pods"
container_logs = "{root}/var/log/containers"

[holders.slurm]
enabled = false
"""
SLURM_CONFIG = """
[holders.kubelet]
enabled = false

[holders.slurm]
nodes = ["n1"]

[metrics]
dialects = ["native", "l9gpu"]
holder_labels = true
"""
GPU, OTHER = 6, 7
HOUR = 3600


def configure(site: Site, text: str) -> None:
    (site.folder / "agent.toml").write_text(CONFIG + text)


def uuid_of(site: Site, index: int) -> str:
    """Return the UUID of a GPU by the agent."""
    devices = get_json(f"{site.agent_url}/v1/snapshot")["devices"]
    return str(next(one["uuid"] for one in devices if one.get("index") == index))


def power(site: Site, allocation: str) -> dict[str, Any]:
    """Return the power of each device in an allocation's answer, by UUID; empty without an answer."""
    answer = site.hub(f"/v1/allocations/{allocation}/metrics")
    return {one["uuid"]: one["readings"].get("gpu_power_watts", {}).get("value") for one in answer["devices"]}


def holders(site: Site, index: int) -> dict[str, Any]:
    """Return the present holders of a GPU by the hub."""
    return dict(next(one["holders"] for one in site.hub("/v1/gpus")["items"] if one.get("index") == index))


def state(site: Site, index: int) -> str:
    return str(holders(site, index)["state"])


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    """Return a kubelet that has run for an hour: directly after its start, it can lack pods."""
    with node_folder() as root, FakeKubelet(root) as running:
        at = running.socket.stat().st_mtime - HOUR
        os.utime(running.socket, (at, at))
        yield running


def test_allocation_of_a_pod_has_its_device(site: Site, kubelet: FakeKubelet) -> None:
    configure(site, KUBELET_CONFIG.format(root=kubelet.root, kubelet=KUBELET))
    hub = site.start_hub()
    site.start_agent()
    pod_uid, device = str(uuid.uuid4()), uuid_of(site, GPU)
    target = {"cluster": "local", "pod_uid": pod_uid}
    site.put("/v1/allocations/train-0", {"kind": "kubernetes_pod", "target": target, "tenant": "ml"})
    assert site.hub("/v1/allocations/train-0/metrics")["source"] == "unavailable"
    machine = site.this_machine()["machine"]
    assert (machine["k8s_node_name"], machine["k8s_node_uid"]) == ("gpu-1", "5c1b7a2e-8f4d-4f0a-9a55-0d4b8a1e2f30")

    container = FakeContainer("cuda", devices={"nvidia.com/gpu": (device,)}, id="a" * 64)
    kubelet.place(FakePod("ml", "train-0", pod_uid, (container,)))

    wait_until(lambda: power(site, "train-0").keys() == {device}, what="the device of the pod")
    answer = site.hub("/v1/allocations/train-0/metrics")
    assert (answer["source"], answer["reason"]) == ("host_local_probe", None)
    (shown,) = answer["devices"]
    assert shown["holding"]["containers"] == ["cuda"]
    watts = site.driver.scenario.devices[GPU].numbers["nvmlDeviceGetPowerUsage"]
    assert watts is not None
    wait_until(lambda: power(site, "train-0") == {device: watts / 1000}, what="the power of the device")

    wait_until(lambda: (state(site, GPU), state(site, OTHER)) == ("held", "free"), what="the states of the devices")
    hub.kill()
    kubelet.stop()
    site.start_hub()
    wait_until(lambda: "kubelet" in holders(site, OTHER).get("detail", ""), what="the state without the kubelet")
    assert state(site, OTHER) == "unknown"


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Slurm]:
    """Return a SLURM whose node has the GPUs of the fake driver."""
    program = peers.find("slurmctld")
    if program is None:
        lacking("slurmctld is missing: run `make test`")
    assert program is not None
    node = Node("n1", "gpu:h100:8", ("Name=gpu Type=h100 File={dev}/nvidia[0-7]",))
    with slurm(tmp_path / "slurm", program, [node]) as running:
        yield running


def jobs_by_device(site: Site) -> dict[str, str]:
    """Return the job of each held GPU by `gpufleet who`, by UUID."""
    titles, *rows = [
        line.split("\t") for line in gpufleet("who", "--agent", site.agent_url, "--wide").stdout.splitlines()
    ]
    table = [dict(zip(titles, row, strict=True)) for row in rows]
    return {row["uuid"]: row["holder"].split()[1] for row in table if row["kind"] == "job"}


@pytest.mark.system
def test_jobs_an_array_and_a_step_have_their_devices(
    site: Site, jobs: Slurm, peer: Callable[[str], Path], tmp_path: Path
) -> None:
    configure(site, SLURM_CONFIG)
    libraries = f"{site.driver.environment['LD_LIBRARY_PATH']}:{jobs.environment['LD_LIBRARY_PATH']}"
    site.agent_environment = {**jobs.environment, "LD_LIBRARY_PATH": libraries}
    site.start_hub()
    site.start_agent()
    job = jobs.submit("-n2", "--gres=gpu:2", script="srun --exact -n1 --gres=gpu:1 sleep 900 & wait")
    jobs.wait_for("RUNNING", job)
    target = {"cluster": "local", "job_id": str(job)}
    site.put("/v1/allocations/job", {"kind": "slurm_job", "target": target, "valid_from": "2020-01-01T00:00:00Z"})

    wait_until(lambda: len(power(site, "job")) == 2, what="the devices of the job")
    known = {device.uuid for device in site.driver.scenario.devices}
    assert power(site, "job").keys() <= known
    other = jobs.submit("--gres=gpu:1")
    site.put("/v1/allocations/other", {"kind": "slurm_job", "target": {"cluster": "local", "job_id": str(other)}})
    wait_until(lambda: len(power(site, "other")) == 1, what="the device of the other job")
    assert not power(site, "job").keys() & power(site, "other").keys()
    target = {"cluster": "local", "job_id": f"test/{other}"}
    site.put("/v1/allocations/qualified", {"kind": "slurm_job", "target": target})
    assert power(site, "qualified").keys() == power(site, "other").keys()

    array = jobs.submit("--gres=gpu:1", "-a", "3,7")
    jobs.wait_for("RUNNING", array)
    wait_until(lambda: len(jobs_by_device(site)) == 5, what="the devices of the tasks")
    shown = jobs_by_device(site)
    assert {uuid for uuid, id_ in shown.items() if id_ == str(job)} == power(site, "job").keys()  # not only the step's
    assert [*shown.values()].count(str(other)) == 1
    tasks = {*shown.values()} - {str(job), str(other)}
    assert len(tasks) == 2
    assert str(array) in tasks
    with prometheus(peer("prometheus"), tmp_path / "p", urlsplit(site.agent_url).netloc) as server:
        for id_ in {*shown.values()}:
            for family, label in (("gpufleet_gpu_utilization_ratio", "uuid"), ("gpu_utilization", "gpu_uuid")):
                query = f'{family}{{job_id="{id_}"}}'
                wait_until(partial(server.query, query), what=query)
                found = {one.labels[label] for one in server.now(query)}
                assert found == {uuid for uuid, own in shown.items() if own == id_}
