"""Owners of pods on a node: an agent process with a fake driver, a kubelet, an API server and an OTLP receiver."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.kube_api import FakeKubeApi
from tests.fakes.kubelet import FakeContainer, FakeKubelet, FakePod, holders_config, node_folder
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.fakes.receiver import Receiver, points_of
from tests.support.command import gpufleet
from tests.support.kube_objects import DEPLOYMENTS, POD_KEY, REPLICA_SETS, controller, gpu_pod, key_of
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.timeout(240)

NODE, GPU = "gpu-1", 3
CONFIG = """
node = "node-1"
listen = "{listen}"
state = "{state}"

[lanes]
fast = 1.0
slow = 1.0
static = 5.0

{holders}

[kubernetes]
enrich = true
kubeconfig = "{kubeconfig}"
pod_labels = ["team"]

[readers.host]
k8s_node_name = "{node}"

[push.otlp]
endpoint = "{otlp}"
interval_seconds = 1.0
"""
CHAIN = [("ReplicaSet", "web-1"), ("Deployment", "web")]


def store(api: FakeKubeApi) -> None:
    """Store a pod of a Deployment, and one of another node."""
    deployment = api.put(key_of(DEPLOYMENTS), {"metadata": {"name": "web", "namespace": "test"}})
    replica_set = {"metadata": {"name": "web-1", "namespace": "test", "ownerReferences": [controller(deployment)]}}
    owner = api.put(key_of(REPLICA_SETS), replica_set)
    pod = gpu_pod("web-1-a", node=NODE, owner=owner)
    pod["metadata"] |= {"uid": "uid-a", "labels": {"team": "ml", "kueue.x-k8s.io/queue-name": "research"}}
    api.put(POD_KEY, pod)
    api.put(POD_KEY, gpu_pod("elsewhere", node="gpu-2", owner=owner))


async def until(condition: Any, what: str) -> None:
    async def look() -> Any:
        return await asyncio.to_thread(condition)

    await wait_until_async(look, seconds=40, what=what)


async def test_each_surface_of_the_node_shows_the_owner(tmp_path: Path) -> None:
    driver = FakeNvml(tmp_path, Scenario.healthy(8))
    uuid = driver.scenario.devices[GPU].uuid
    url = f"http://127.0.0.1:{free_port()}"
    with node_folder() as root, FakeKubelet(root) as kubelet:
        kubelet.place(FakePod("test", "web-1-a", "uid-a", (FakeContainer("main", {"nvidia.com/gpu": (uuid,)}),)))
        async with FakeKubeApi() as api, Receiver.running() as receiver:
            store(api)
            config = tmp_path / "agent.toml"
            kubeconfig = api.kubeconfig(tmp_path)
            config.write_text(
                CONFIG.format(
                    listen=url.removeprefix("http://"),
                    state=tmp_path / "state",
                    holders=holders_config(root),
                    kubeconfig=kubeconfig,
                    node=NODE,
                    otlp=receiver.url,
                )
            )
            agent = Gpufleet(["agent", "--config", str(config)], tmp_path / "agent.log", driver.environment)

            def holders() -> list[Any]:
                devices = get_json(f"{url}/v1/snapshot")["devices"]
                held = [one.get("holders", {}).get("holdings", []) for one in devices if one.get("uuid") == uuid]
                return [one["holder"] for holdings in held for one in holdings]

            def chain() -> list[tuple[str, str]]:
                return [(one["kind"], one["name"]) for holder in holders() for one in holder.get("owners", [])]

            def state() -> str:
                return str(get_json(f"{url}/v1/snapshot")["capabilities"]["holders_kubernetes"])

            def sent() -> list[dict[str, Any]]:
                bodies = [got.body for got in receiver.taken if got.path == "/v1/metrics"]
                return [at for body in bodies for _, at, _ in points_of(body) if "k8s.deployment.name" in at]

            try:
                await asyncio.to_thread(agent.wait_for, f"{url}/readyz")
                await until(lambda: chain() == CHAIN, "the owners")
                await until(sent, "points with the owner")
                (holder,) = await asyncio.to_thread(holders)
                page = await asyncio.to_thread(get_text, f"{url}/metrics")
                who = await asyncio.to_thread(gpufleet, "who", "--agent", url, "--columns", "holder,owner,queue")
                single = await asyncio.to_thread(
                    gpufleet, "who", "--config", str(config), "--columns", "holder,owner", env=driver.environment
                )
                await api.stop()
                await until(lambda: state().startswith("stale"), "the outage of the API server")
                assert await asyncio.to_thread(chain) == CHAIN
                doctor = await asyncio.to_thread(gpufleet, "doctor", "--config", str(config), "--json")
            finally:
                await asyncio.to_thread(agent.kill)

    (check,) = [one for one in json.loads(doctor.stdout) if one["name"] == "holders"]
    assert "kubernetes: stale" in check["found"]
    assert holder["labels"]["team"] == "ml"
    assert holder["queue"] == "research"
    (info,) = [line for line in page.splitlines() if line.startswith("gpufleet_gpu_holder_info{")]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', info))
    assert (labels["owner_kind"], labels["owner_name"], labels["queue"]) == ("Deployment", "web", "research")
    attributes = sent()[-1]
    assert attributes["hw.id"] == uuid
    assert (attributes["k8s.owner.kind"], attributes["k8s.owner.name"]) == ("Deployment", "web")
    assert (attributes["k8s.pod.label.team"], attributes["gpufleet.queue"]) == ("ml", "research")
    assert not {"k8s.job.name", "k8s.statefulset.name"} & attributes.keys()
    assert "test/web-1-a\tDeployment web\tresearch" in who.stdout
    assert "test/web-1-a\tDeployment web" in single.stdout
    requested = [query["fieldSelector"] for path, query in api.queries if path == "/api/v1/pods"]
    assert set(requested) == {f"spec.nodeName={NODE}"}
    assert "elsewhere" not in page
