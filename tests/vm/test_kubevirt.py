"""Discovery by KubeVirt: objects in a real API server, a real guest behind its VSOCK, an agent with minimal RBAC.

The kubelet is a fake that speaks its protocol. It lists the launcher pod with a GPU of the node, by PCI address. The
node's PCI bus is a tree of files.

AF_VSOCK is not available here: a dialer maps CIDs to the hypervisor's socket of the guest. The confined namespace mode
is a fake, because it needs Linux 7.0.
"""

import asyncio
import copy
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.agent.guests.access_paths import ShortConnectionReader
from gpufleet.channels.local.files import LocalFiles
from gpufleet.channels.stream.dialers import HybridVsockDialer
from gpufleet.channels.stream.launcher_namespaces import LauncherNamespaces, NamespaceSocket
from gpufleet.channels.stream.vmi_subresource import SubresourceVsock
from gpufleet.channels.stream.vmi_vsock import LOCAL_CID, ConnectionSlots, NodeVsock, VmiVsockDialer
from gpufleet.config.agent import AgentConfig
from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.resources import VIRTUAL_MACHINE_INSTANCES, ApiResource
from gpufleet.holders.kubevirt.decisions import ANNOTATION
from gpufleet.model.catalogue import Lane
from gpufleet.model.view import Side
from gpufleet.ports.channel import Dialer
from gpufleet.ports.vsock import VsockTarget
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.runtime import SystemClock
from gpufleet.wiring.agent import running_agent
from tests.fakes.kube_api import Rule
from tests.fakes.kubelet import KUBELET, FakeContainer, FakeKubelet, FakePod, node_folder
from tests.fakes.vsock_api import FakeVsockApi
from tests.holders.kubevirt.objects import A10, CID, NODE, POD, vmi_object
from tests.readers.host.machines import build
from tests.support import kube
from tests.support.kube import PARTS, ClusterUnderTest, KubeServer, kube_server
from tests.support.processes import get_json, get_text
from tests.support.waiting import wait_until_async
from tests.vm.machine import ENGINE_PORT, VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

DEFINITIONS = ApiResource("apiextensions.k8s.io", "v1", "customresourcedefinitions", is_namespaced=False)
PASSED_THROUGH = "0000:01:00.0"
SECONDS = 15.0
"""Limit of each wait, before `PATIENCE`: all of them are within the timeout of the test, which takes 10 s."""


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with node_folder() as root, FakeKubelet(root) as kubelet:
        yield kubelet


def kubelet_folders(kubelet: FakeKubelet) -> dict[str, str]:
    """Return the configuration of the kubelet's holders."""
    logs = {"pod_logs": "var/log/pods", "container_logs": "var/log/containers", "folder": KUBELET}
    return {name: str(kubelet.root / path) for name, path in logs.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, peer: Callable[[str], Path]) -> Iterator[KubeServer]:
    if not (PARTS / "kube-apiserver.zst").exists():
        pytest.skip("no real kube-apiserver beside this checkout (shared/real/kube)")
    with kube_server(tmp_path_factory.mktemp("kube"), peer("etcd")) as started:
        yield started


class Rig:
    """The guest behind every CID, and what was dialled."""

    def __init__(self, vm: VirtualMachine) -> None:
        self.vm, self.is_local, self.dialled = vm, False, list[tuple[int, int]]()

    def connector(self, _: LauncherNamespaces) -> NodeVsock:
        return NodeVsock(_Namespaces(self), self.make_dialer)

    def make_dialer(self, cid: int, port: int, unconnected: socket.socket) -> Dialer:
        unconnected.close()
        self.dialled.append((cid, port))
        return HybridVsockDialer(self.vm.vsock, port, timeout_seconds=30.0)


class _Namespaces(LauncherNamespaces):
    """Network namespaces whose mode the test sets."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def open(self, pods: tuple[str, ...]) -> NamespaceSocket:
        assert len(pods) == 1
        return NamespaceSocket(socket.socket(socket.AF_UNIX), self._rig.is_local)


def definition() -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    kind = "VirtualMachineInstance"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "virtualmachineinstances.kubevirt.io"},
        "spec": {
            "group": "kubevirt.io",
            "names": {"plural": f"{kind.lower()}s", "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


class Node:
    """The guests that an agent shows."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def guests(self) -> dict[str, Any]:
        snapshot = await asyncio.to_thread(get_json, f"{self.url}/v1/snapshot")
        return {guest["name"]: guest for guest in snapshot["guests"]}

    async def holders(self, address: str) -> list[dict[str, Any]]:
        """Return the holders of the device of the node with a PCI address."""
        snapshot = await asyncio.to_thread(get_json, f"{self.url}/v1/snapshot")
        (device,) = [one for one in snapshot["devices"] if one.get("pci_address") == address]
        assert device.get("uuid") is None
        return list(device.get("holders", {}).get("holdings", []))

    async def wait_for(self, reached: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Return the guests of the first snapshot for which `reached` is true; the next one may differ."""
        shown: dict[str, Any] = {}

        async def check() -> bool:
            nonlocal shown
            shown = await self.guests()
            return reached(shown)

        await wait_until_async(check, seconds=SECONDS, what=what)
        return shown


async def start_objects(cluster: ClusterUnderTest, gpus: int) -> dict[str, Any]:
    """Create machines, the first with `gpus` GPUs; none has its user's consent."""
    await cluster.create(DEFINITIONS, definition())
    contents = (
        vmi_object(annotation=None, gpus=(A10,) * gpus, labels={"team": "blue", "secret": "x"}),
        vmi_object("hostile", annotation="vsock://2:22", cid=43, pods={}),
        vmi_object("windows", os="mswindows", cid=44, pods={}),
        vmi_object("no-vsock", vsock=False, cid=45, pods={}),
        vmi_object("other-vendor", gpus=("amd.com/MI300X",), cid=46, pods={}),
    )
    for one in contents:
        one["metadata"]["namespace"] = cluster.namespace
    stored = [await cluster.create(VIRTUAL_MACHINE_INSTANCES, one) for one in contents]
    return stored[0]


async def replace(
    cluster: ClusterUnderTest, stored: dict[str, Any], *, node: str = NODE, annotation: str | None = "dcgm-vsock"
) -> dict[str, Any]:
    content = copy.deepcopy(stored)
    content["metadata"]["labels"]["kubevirt.io/nodeName"] = node
    content["metadata"]["annotations"] = {} if annotation is None else {ANNOTATION: annotation}
    content["status"]["nodeName"] = node
    content["status"]["activePods"] = dict.fromkeys(content["status"]["activePods"], node)
    return await cluster.replace(VIRTUAL_MACHINE_INSTANCES, content)


async def test_guest_is_read_only_with_consent_and_on_its_node(
    vm: VirtualMachine, server: KubeServer, kubelet: FakeKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test for consent, namespace modes, migration and deletion: the guest and the API server start once."""
    rig = Rig(vm)
    monkeypatch.setattr("gpufleet.wiring.kubevirt.NodeVsock", rig.connector)
    monkeypatch.setattr(
        "gpufleet.wiring.readers.LocalFiles", partial(LocalFiles, build("kubevirt_node", tmp_path / "n"))
    )
    async with kube.tested_cluster("real", tmp_path, lambda: server) as cluster:
        stored = await start_objects(cluster, vm.gpus)
        compute = FakeContainer("compute", devices={A10: (PASSED_THROUGH,)})
        kubelet.place(FakePod(cluster.namespace, "virt-launcher-train-0-x7k2p", POD, (compute,)))
        token = tmp_path / "token"
        token.write_text(await cluster.token([Rule("kubevirt.io", "virtualmachineinstances", ("list", "watch"))]))
        config = {
            "listen": "127.0.0.1:0",
            "state": str(tmp_path / "state"),
            "metrics": {"dialects": ["native", "kubevirt"]},
            "lanes": {"fast": 2.0},
            "readers": {"host": {"k8s_node_name": NODE}, "nvml": {"enabled": False}},
            "holders": {"kubelet": kubelet_folders(kubelet)},
            "kubevirt": {"enabled": True, "kubeconfig": str(cluster.user(token)), "labels": ["team"]},
        }
        async with running_agent(msgspec.convert(config, AgentConfig)) as agent:
            node = Node(agent.url)
            guests = await node.wait_for(lambda shown: len(shown) == 5, "the machines to be listed")
            assert {name: (one["state"], one.get("excluded", False)) for name, one in guests.items()} == {
                "train-0": ("not_enabled", True),
                "hostile": ("not_enabled", True),
                "windows": ("not_enabled", True),
                "no-vsock": ("not_enabled", True),
                "other-vendor": ("no_supported_gpu", True),
            }
            assert rig.dialled == []

            stored = await replace(cluster, stored)
            guests = await node.wait_for(lambda shown: shown["train-0"]["state"] == "ok", "the guest to be read")
            guest = guests["train-0"]
            assert guest["vm_uuid"] == stored["metadata"]["uid"]

            async def has_holder() -> bool:
                return bool(await node.holders(PASSED_THROUGH))

            await wait_until_async(has_holder, seconds=SECONDS, what="the launcher pod")
            held = await node.holders(PASSED_THROUGH)
            assert [(one["holder"]["id"], one["parent"]["id"], one["methods"]) for one in held] == [
                (POD, stored["metadata"]["uid"], ["kubelet"])
            ]
            assert await node.holders("0000:41:00.0") == []
            power = [one["readings"]["gpu_power_watts"]["value"] for one in guest["devices"]]
            assert power == [312.25 + index for index in range(vm.gpus)]
            assert set(rig.dialled) == {(CID, ENGINE_PORT)}
            page = await asyncio.to_thread(get_text, f"{agent.url}/metrics")
            series = [line for line in page.splitlines() if line.startswith("kubevirt_vmi_gpu_power_usage_milliwatts{")]
            assert len(series) == vm.gpus
            assert all('kubernetes_vmi_label_team="blue"' in line and "secret" not in line for line in series)

            rig.is_local = True
            await node.wait_for(lambda _: (LOCAL_CID, ENGINE_PORT) in rig.dialled, "a dial in the confined namespace")
            await node.wait_for(lambda shown: shown["train-0"]["state"] == "ok", "the guest to be read")

            stored = await replace(cluster, stored, annotation=None)
            await node.wait_for(lambda shown: shown["train-0"].get("excluded", False), "the consent to be withdrawn")
            count = len(rig.dialled)
            stored = await replace(cluster, stored, annotation=None, node="gpu-2")
            await node.wait_for(lambda shown: "train-0" not in shown, "the migration to another node")
            assert len(rig.dialled) == count
            stored = await replace(cluster, stored)
            guests = await node.wait_for(
                lambda shown: "train-0" in shown and shown["train-0"]["state"] == "ok", "the migration back"
            )
            assert guests["train-0"]["vm_uuid"] == stored["metadata"]["uid"]

            await cluster.delete(VIRTUAL_MACHINE_INSTANCES, "train-0")
            await node.wait_for(lambda shown: "train-0" not in shown, "the deletion")
            assert {cid for cid, _ in rig.dialled} == {CID, LOCAL_CID}


async def test_guest_is_read_through_the_subresource(vm: VirtualMachine, tmp_path: Path) -> None:
    """KubeVirt's part, between the WebSocket and the guest, is a fake."""
    target = VsockTarget(uid="u", namespace="ml", name="train-0", cid=CID, pods=())
    async with FakeVsockApi() as api:
        api.guest = partial(HybridVsockDialer, vm.vsock)
        connection = ApiConnection(ApiAccess(kubeconfig=str(api.kubeconfig(tmp_path))))
        dialer = VmiVsockDialer(
            "u", ENGINE_PORT, find=lambda _: target, connector=SubresourceVsock(connection), slots=ConnectionSlots()
        )
        reader = ShortConnectionReader(
            DcgmReader(dialer, SystemClock(), side=Side.GUEST, profiling=False, reply_seconds=60.0)
        )
        try:
            passes = [await reader.read(Lane.FAST) for _ in range(2)]
        finally:
            await reader.close()
            await connection.close()
    gpus = [[sample.view.uuid for sample in one.samples if sample.view is not None] for one in passes]
    assert [len(found) for found in gpus] == [vm.gpus, vm.gpus]
    assert len(api.requests) == 2
